"""Programs that use real libraries as people do, under TORCHNAN=raise: as they are, and with a bug planted.

``python -m tests.libraries.run [LIBRARY ...]``. A program prints what it computes; with ``--bug`` it has the bug that
its docstring tells of, and the line with the comment ``expect: OPERATOR`` is where that makes a NaN or Inf. Exits with
1 if a program without a bug is reported, or computes anything else than without torchnan, or if a report does not name
that operator and that line. A run of all libraries writes docs/libraries.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import environments

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
WORK = REPOSITORY / "build" / "libraries"
PAGE = REPOSITORY / "docs" / "libraries.md"
PACKAGES = {"geometric": "torch_geometric", "pyro": "pyro-ppl"}
DEADLINE = 1800  # seconds a program; only a hang reaches it

HEAD = """# Real libraries under torchnan

Each program uses a library as its users do, under `TORCHNAN=raise`. *As it is*, it has to end without a report and to
print the same numbers as without torchnan. *With the bug*, the report has to name the operator and the line that make
the NaN or Inf. `make libraries` runs the [programs](../tests/libraries/programs) and writes this table.

| library | version | what the program does | as it is | bug | with the bug |
|---|---|---|---|---|---|
"""

TAIL = """
Known: the tables of diffusers' KDPM2 schedulers begin with `log(0)`, which is cut off later. They are read element by
element, and that [is reported](harm.md#reported-even-if-you-handle-it-yourself); the program uses other schedulers.
"""


@dataclasses.dataclass
class Program:
    """One program, and its expected report."""

    path: Path

    @property
    def library(self) -> str:
        return self.path.stem.removeprefix("use_")

    def texts(self) -> tuple[str, str]:
        """Returns what it does, and its bug."""
        does, bug = self.path.read_text().split('"""')[1].split("\n\nBug: ")
        return " ".join(does.partition(": ")[2].split()).rstrip("."), " ".join(bug.split()).rstrip(".")

    def expected(self) -> tuple[str, int]:
        """Returns the operator and the number of the line."""
        for number, line in enumerate(self.path.read_text().split("\n"), 1):
            if found := re.search(r"# expect: (\S+)", line):
                return found[1], number
        raise ValueError(f"{self.path} has no line with '# expect: OPERATOR'")

    def run(self, *arguments: str, log: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHNAN")}
        environment |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        if log is not None:
            log.write_text("")
            environment |= {"TORCHNAN": "raise", "TORCHNAN_LOG": str(log)}
        command = [environments.python_of(WORK), "-W", "ignore", self.path, *arguments]
        return subprocess.run(command, cwd=WORK, env=environment, capture_output=True, text=True, timeout=DEADLINE)

    def check_as_it_is(self) -> str:
        """Returns "silent", or the error."""
        log = WORK / f"{self.library}.jsonl"
        plain, watched = self.run(), self.run(log=log)
        if plain.returncode != 0:
            return f"fails without torchnan: {plain.stderr[-300:]}"
        if log.read_text() or watched.returncode != 0:
            return f"REPORTED: {watched.stderr[-900:]}"
        return "silent" if watched.stdout == plain.stdout else "PRINTS OTHER NUMBERS"

    def check_with_bug(self) -> str:
        """Returns "operator at line", or the error."""
        log = WORK / f"{self.library}.bug.jsonl"
        ended = self.run("--bug", log=log)
        findings = log.read_text().splitlines()
        if not findings:
            return f"MISSED: {ended.stderr[-300:]}"
        finding = json.loads(findings[0])
        operator, line = self.expected()
        frames = [(Path(frame["file"]).name, frame["line"]) for frame in finding["stack"]]
        if finding["op"] != operator or (self.path.name, line) not in frames:
            return f"WRONG: {finding['op']} at {frames[:1]}, not {operator} at line {line}"
        return f"`{operator}`, its line"


def is_right(as_it_is: str, with_bug: str) -> bool:
    return as_it_is == "silent" and with_bug.startswith("`")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", help="default: all")
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    lines = (HERE / "requirements.txt").read_text().splitlines()
    environments.install(WORK, [line for line in lines if line and not line.startswith("#")])
    rows, all_right = [], True
    for program in map(Program, sorted((HERE / "programs").glob("use_*.py"))):
        if given.libraries and program.library not in given.libraries:
            continue
        version = environments.version_of(WORK, PACKAGES.get(program.library, program.library))
        does, bug = program.texts()
        as_it_is, with_bug = program.check_as_it_is(), program.check_with_bug()
        all_right &= is_right(as_it_is, with_bug)
        rows.append(f"| {program.library} | {version} | {does} | {as_it_is} | {bug} | {with_bug} |\n")
        print(rows[-1], end="", flush=True)
    if not given.libraries and all_right:
        PAGE.write_text(HEAD + "".join(rows) + TAIL)
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
