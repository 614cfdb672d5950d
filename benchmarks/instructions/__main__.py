"""Instructions that one intercepted call takes, counted by callgrind: the same on a busy machine.

    python -m benchmarks.instructions [--json OUT]

Rows are operations; "off" is the operation itself, the other columns are what a mode adds to it. "redispatch" adds a
dispatch key whose kernels do nothing but redispatch: the least that interception can take. Needs valgrind and its
headers (Debian: apt-get install valgrind).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths

import torchnan

CALLS = 1000  # kCalls in calls.cpp
MODES = ("redispatch", "detect", "exact")


def build(program: Path) -> None:
    """Compiles calls.cpp against the installed package."""
    package, torch_libraries = Path(torchnan.__path__[0]), Path(torch.__path__[0]) / "lib"
    libraries = [package / "lib", torch_libraries]
    command = [os.environ.get("CXX", "g++"), "-O3", "-DNDEBUG", "-std=c++20", f"-I{package / 'include'}"]
    command += [f"-I{path}" for path in include_paths()]
    command += [str(Path(__file__).with_name("calls.cpp")), "-o", str(program), "-Wl,--no-as-needed"]
    command += [flag for library in libraries for flag in (f"-L{library}", f"-Wl,-rpath,{library}")]
    subprocess.run([*command, "-ltorchnan", "-ltorch", "-ltorch_cpu", "-lc10"], check=True)


def count(folder: Path) -> dict[str, dict[str, float]]:
    """Returns instructions per call, by operation and mode."""
    program = folder / "calls"
    build(program)
    subprocess.run(
        ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'out'}", program],
        check=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"},  # valgrind knows no AVX-512
        stderr=subprocess.DEVNULL,
    )
    table: dict[str, dict[str, float]] = {}
    for part in folder.glob("out.*"):
        trigger, total = "", 0
        for line in part.read_text().splitlines():
            if line.startswith("desc: Trigger: Client Request: "):
                trigger = line.removeprefix("desc: Trigger: Client Request: ")
            elif line.startswith("totals: "):
                total = int(line.split()[1])
        mode, _, operation = trigger.partition("/")
        if operation:
            table.setdefault(operation, {})[mode] = total / CALLS
    return table


def print_table(table: dict[str, dict[str, float]]) -> None:
    """A row per operation: the operation's own instructions, and what each mode adds."""
    print(f"{'instructions per call':<42}{'off':>9}" + "".join(f"{'+ ' + mode:>14}" for mode in MODES))
    for operation, counts in table.items():
        added = "".join(f"{counts[mode] - counts['off']:>14,.0f}" for mode in MODES)
        print(f"{operation:<42}{counts['off']:>9,.0f}{added}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="OUT")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed: sudo apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        table = count(Path(folder))
    print_table(table)
    if given.json:
        Path(given.json).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
