"""Checks that linters do not have: forbidden file names, and forbidden names in the sources."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

# Names of machines do not belong here, nor does what must not be in a package that people trust.
FORBIDDEN = {
    r"/(root|home)/\w+": "a path of somebody's machine",
    r"/work/": "a path of somebody's machine",
    r"\bimport pickle\b|\bpickle\.loads?\(": "pickle",
    r"(?<![.\w])(eval|exec)\(": "code from text",
}
ALLOWED = {
    ("tests/detection/test_detect.py", "pickle"),  # errors must survive it; torchnan itself uses none
    ("tests/support/forked_python.py", "code from text"),  # programs of tests
    ("tests/lint_repo.py", "pickle"),
    ("tests/lint_repo.py", "code from text"),
    ("tests/lint_repo.py", "a path of somebody's machine"),
}


def tests_that_never_run(names: list[str]) -> list[str]:
    """Returns the files of tests that neither pytest finds by itself nor the Makefile names."""
    configured = re.search(
        r"^testpaths = \[(.*?)^\]", (REPOSITORY / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE
    )
    assert configured is not None
    run = [*re.findall(r'"(.*?)"', configured.group(1)), "tests/devices", "tests/gpu"]
    tests = [name for name in names if re.fullmatch(r"tests/(.*/)?test_\w+\.py", name)]
    return [test for test in tests if not any(test == path or test.startswith(f"{path}/") for path in run)]


def main() -> int:
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    names = files.stdout.splitlines()
    faults = [f"{test}: testpaths in pyproject.toml does not name it" for test in tests_that_never_run(names)]
    for name in names:
        path = REPOSITORY / name
        if path.suffix not in {".py", ".cpp", ".h", ".cu", ".cmake", ".txt", ".toml", ".md", ""} or not path.is_file():
            continue
        if {"utils", "helpers", "common"} & set(Path(name).with_suffix("").parts):
            faults.append(f"{name}: a name that says nothing")
        text = path.read_text()
        for pattern, what in FORBIDDEN.items():
            is_generated = name.startswith("tests/fuzz/") and "path" not in what  # programs are text there
            if (name, what) in ALLOWED or is_generated or (path.suffix == ".md" and "path" not in what):
                continue
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                faults.append(f"{name}:{line}: {match.group()!r} is {what}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
