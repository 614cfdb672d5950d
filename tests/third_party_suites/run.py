"""Runs test suites that others wrote, without torchnan and under it, and names every test whose outcome differs.

``python -m tests.third_party_suites.run [PACKAGE ...]``: packages, versions and files are in suites.toml. Each suite
runs twice as it is, which names what varies by itself, then with ``TORCHNAN=log``. Exits with 1 if torchnan changed
an outcome or made a test warn; a run of all suites writes docs/suites.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.support import environments
from tests.third_party_suites import write_suites_page as page
from tests.third_party_suites.outcomes import Run, read

HERE = Path(__file__).resolve().parent
WORK = HERE.parents[1] / "build" / "suites"
PYTHON = environments.python_of(WORK)
DEADLINE = 3600  # seconds a run; only a hang reaches it

# One thread and fixed seeds (in outcomes.py): two runs are to be the same.
SAME = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="default: all in suites.toml")
    parser.add_argument("--action", default="log", help="the value of TORCHNAN (default: log)")
    given = parser.parse_args()
    suites = page.suites()
    needed = [f"{suite['package']}=={suite['version']}" for suite in suites]
    environments.install(WORK, [*needed, *(one for suite in suites for one in suite.get("install", []))])
    rows = []
    for suite in suites:
        if not given.packages or suite["package"] in given.packages:
            rows.append(row_of(suite, given.action))
            print(page.line(rows[-1]), *page.changes(rows[-1]), sep="\n", flush=True)
    if not given.packages and given.action == "log":
        page.write(rows)
    return 1 if any(row["changed"] or row["warned"] for row in rows) else 0


def sources(suite: dict[str, Any]) -> Path:
    """The folder of the source distribution, where the tests are."""
    package, version = suite["package"], suite["version"]
    folder = WORK / "src" / f"{package}-{version}"
    if not folder.is_dir():
        place = WORK / "sdist"
        only_source = ["--no-deps", "--no-binary", package]
        subprocess.run(
            [PYTHON, "-m", "pip", "download", "-q", *only_source, "-d", place, f"{package}=={version}"], check=True
        )
        with tarfile.open(place / f"{package}-{version}.tar.gz") as archive:
            archive.extractall(WORK / "src", filter="data")
        # so that torchnan's configuration does not apply to them
        (WORK / "src" / "pytest.ini").write_text("[pytest]\n")
    return folder


def row_of(suite: dict[str, Any], action: str) -> dict[str, Any]:
    """Three runs, compared."""
    log = WORK / f"{suite['package']}.findings.jsonl"
    log.unlink(missing_ok=True)
    plain, again = run(suite, "plain"), run(suite, "again")
    watched = run(suite, action, TORCHNAN=action, TORCHNAN_LOG=str(log))
    by_itself = plain.differences(again)
    return {
        "package": suite["package"],
        "version": suite["version"],
        "tests": len(plain.outcomes) - 1,  # one is the run itself
        "passed": sum(outcome == "passed" for outcome in plain.outcomes.values()),
        "by itself": sorted(by_itself),
        "changed": {
            test: {"outcomes": outcomes, "told": watched.told.get(test, "")}
            for test, outcomes in plain.differences(watched).items()
            if test not in by_itself
        },
        "warned": sorted(watched.warnings - plain.warnings - again.warnings),
        "findings": len(log.read_text().splitlines()) if log.exists() else 0,
        "ratio": round(watched.seconds / min(plain.seconds, again.seconds), 2),
        "seconds": plain.seconds,
    }


def run(suite: dict[str, Any], name: str, **variables: str) -> Run:
    out = WORK / f"{suite['package']}.{name}.jsonl"
    out.write_text("")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TORCHNAN")}
    environment |= {**SAME, **suite.get("variables", {}), **variables, "SUITES_OUTCOMES": str(out)}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [environment.get("PYTHONPATH")])])
    options = ["-q", "-o", "addopts=", "-p", "outcomes", "-p", "no:randomly", "-p", "no:cacheprovider", "--rootdir=."]
    deselected = [f"--deselect={test}" for test in suite.get("deselect", {})]
    command = [PYTHON, "-m", "pytest", *options, *deselected, *suite["tests"]]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with open(out.with_suffix(".txt"), "w") as printed:
        subprocess.run(
            command, cwd=sources(suite), env=environment, stdout=printed, stderr=printed, timeout=DEADLINE, check=False
        )
    done = read(out, seconds=round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 1))
    if not done.outcomes:
        raise RuntimeError(f"{suite['package']}: no test ran, {out.with_suffix('.txt')} says why")
    return done


if __name__ == "__main__":
    sys.exit(main())
