"""Instructions that one intercepted call takes, counted by callgrind: the same on a busy machine.

    python -m benchmarks.instructions [--device LAGGING.SO] [--json OUT] [--functions OPERATION]

Rows are operations; "off" is the operation itself, the other columns are the instructions that a mode adds. "own" are
those that "detect" spends in functions of torchnan, whatever blocks the allocator splits meanwhile.
"redispatch" adds a dispatch key whose kernels only redispatch: the minimum cost of interception. With `--device`,
operations run on the device of tests/cpp/device (build/*/tests/cpp/lagging.so), with kernels that compute nothing.
`--functions` lists where "detect" spends its instructions in one operation. Needs valgrind and its headers (Debian:
apt-get install valgrind).
"""

from __future__ import annotations

import argparse
import collections
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
from torchnan._load import _C

CALLS = 1000  # kCalls in calls.cpp
MODES = ("redispatch", "detect", "exact")


def build(program: Path) -> None:
    """Compiles calls.cpp against the installed package."""
    package, torch_libraries = Path(torchnan.__path__[0]), Path(torch.__path__[0]) / "lib"
    libraries = [Path(_C.__file__).parent, torch_libraries]
    command = [os.environ.get("CXX", "g++"), "-O3", "-DNDEBUG", "-std=c++20", f"-I{package / 'include'}"]
    command += [f"-I{path}" for path in include_paths()]
    command += [str(Path(__file__).with_name("calls.cpp")), "-o", str(program), "-Wl,--no-as-needed"]
    command += [flag for library in libraries for flag in (f"-L{library}", f"-Wl,-rpath,{library}")]
    subprocess.run([*command, "-ltorchnan", "-ltorch", "-ltorch_cpu", "-lc10"], check=True)


def by_function(part: str) -> collections.Counter[str]:
    """Returns the instructions of each function in a dump of callgrind, without those that it calls."""
    counts: collections.Counter[str] = collections.Counter()
    library = function = ""
    is_call = False
    for line in part.splitlines():
        if line.startswith("ob="):
            library = Path(line.removeprefix("ob=")).name
        elif line.startswith("fn="):
            function = f"{library}: {line.removeprefix('fn=')}"
        elif line.startswith("calls="):
            is_call = True
        elif line[:1] in "0123456789+-*" and line:
            if not is_call:
                counts[function] += int(line.split()[1])
            is_call = False
    return counts


def count(folder: Path, device: Path | None) -> dict[str, dict[str, collections.Counter[str]]]:
    """Returns instructions of all calls, by operation, mode and function."""
    program = folder / "calls"
    build(program)
    valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no"]
    subprocess.run(
        [*valgrind, f"--callgrind-out-file={folder / 'out'}", program, *([device] if device else [])],
        check=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"},  # valgrind does not support AVX-512
        stderr=subprocess.DEVNULL,
    )
    table: dict[str, dict[str, collections.Counter[str]]] = {}
    trigger = "desc: Trigger: Client Request: "
    for path in sorted(folder.glob("out.*"), key=lambda path: int(path.suffix[1:])):
        part = path.read_text()
        title = next((line.removeprefix(trigger) for line in part.splitlines() if line.startswith(trigger)), "")
        mode, _, operation = title.partition("/")
        if operation:
            table.setdefault(operation, {})[mode] = by_function(part)
    return table


def added(modes: dict[str, collections.Counter[str]]) -> collections.Counter[str]:
    """Returns what "detect" adds to all calls, by function."""
    counts = collections.Counter(modes["detect"])
    counts.subtract(modes["off"])
    return counts


def own(modes: dict[str, collections.Counter[str]]) -> float:
    """Returns what "detect" adds to a call in functions of torchnan."""
    return sum(count for function, count in added(modes).items() if function.startswith("libtorchnan")) / CALLS


def print_functions(modes: dict[str, collections.Counter[str]]) -> None:
    """Where "detect" spends its instructions, down to one per call."""
    for function, instructions in added(modes).most_common():
        if instructions >= CALLS:
            print(f"{instructions / CALLS:>9,.0f}  {function}")


def print_table(table: dict[str, dict[str, float]]) -> None:
    """A row per operation: the operation's own instructions, and what each mode adds."""
    print(f"{'instructions per call':<42}{'off':>9}" + "".join(f"{'+ ' + mode:>14}" for mode in MODES) + f"{'own':>9}")
    for operation, counts in table.items():
        added = "".join(f"{counts[mode] - counts['off']:>14,.0f}" for mode in MODES)
        print(f"{operation:<42}{counts['off']:>9,.0f}{added}{counts['own']:>9,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=Path, metavar="LAGGING.SO")
    parser.add_argument("--functions", metavar="OPERATION")
    parser.add_argument("--json", metavar="OUT")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed: sudo apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        functions = count(Path(folder), given.device)
    table = {
        operation: {mode: counts.total() / CALLS for mode, counts in modes.items()} | {"own": own(modes)}
        for operation, modes in functions.items()
    }
    print_table(table)
    if given.functions:
        print_functions(functions[given.functions])
    if given.json:
        Path(given.json).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
