"""The speed of the finite scan on one thread, beside the fastest read of the same memory.

    python -m benchmarks.scan [--json OUT]

GB/s are the best of many interleaved rounds; a ratio is the scan's to the read limit's of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from torch.utils.cpp_extension import include_paths

REPOSITORY = Path(__file__).resolve().parents[2]
LEVELS = ("L1", "L2", "L3", "RAM")


def build(program: Path) -> None:
    """Compiles the scan with the flags of a release build, and the timing program."""
    csrc = REPOSITORY / "csrc"
    includes = [f"-I{path}" for path in (csrc, csrc / "include", *include_paths())]
    sources = [Path(__file__).with_name("scan_speed.cpp"), csrc / "check" / "scan" / "finite_scan.cpp"]
    subprocess.run(
        [os.environ.get("CXX", "g++"), "-O3", "-DNDEBUG", "-std=c++20", *includes, *sources, "-o", program], check=True
    )


def measure() -> dict[str, Any]:
    """The output of the program."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "scan_speed"
        build(program)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(printed)
    return result


def print_table(result: dict[str, Any]) -> None:
    """A row per dtype: scan / limit (ratio) at each level, then nanoseconds for small tensors."""
    small = list(next(iter(result["dtypes"].values()))["ns"])
    sizes = "".join(f"{level} {result['bytes'][level] >> 10} KiB".rjust(22) for level in LEVELS)
    print(f"{'GB/s: scan / limit':<18}{sizes}   ns: {', '.join(small)} B")
    for dtype, row in result["dtypes"].items():
        cells = ["{scan:.1f} / {limit:.1f} ({ratio:.2f})".format(**row[level]) for level in LEVELS]
        times = ", ".join(f"{row['ns'][size]:.1f}" for size in small)
        print(f"{dtype:<18}" + "".join(f"{cell:>22}" for cell in cells) + f"   {times}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scan", description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="OUT")
    given = parser.parse_args()
    result = measure()
    print_table(result)
    if given.json:
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
