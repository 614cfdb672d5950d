"""Makes one folder with what a machine with a GPU needs that has PyTorch and no network.

``python -m tests.packaging.gpu_package FOLDER [--for 3.12/2.11 | --sources]``. The folder has torchnan, built here for
that Python and PyTorch with the scan for CUDA; the tests and the benchmarks; and the sources with the header that a
build needs. Where torchnan does not run as it was built, the first call of benchmarks/gpu builds it from these.
``--sources`` leaves the build to that call.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.packaging import build_wheel
from tests.versions.run import Pair

REPOSITORY = Path(__file__).resolve().parents[2]
LARGEST = 16_000_000  # bytes of the folder: it is carried to the machine
LEFT_OUT = shutil.ignore_patterns("__pycache__", "cpp", "*.so")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--for", dest="pair", default="3.12/2.11", metavar="PYTHON/PYTORCH")
    parser.add_argument("--sources", action="store_true", help="build nothing here")
    given = parser.parse_args()
    folder = given.folder.resolve()
    sdist = build_wheel.build_sdist()
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    add_tests(part)
    add_sources(part, sdist)
    fault = "" if given.sources else add_build(part, sdist, Pair(given.pair))
    size = sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
    if size > LARGEST:
        fault += f"it has {size:,} bytes, and at most {LARGEST:,} are allowed"
    if fault:
        print(f"{part}: {fault}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    what = "the sources, to be built there" if given.sources else f"built for Python and PyTorch {given.pair}"
    print(f"{given.folder}  {size / 1e6:.1f} MB, {what}")
    return 0


def add_tests(folder: Path) -> None:
    for name in ("tests", "benchmarks"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=LEFT_OUT)
    shutil.copy(REPOSITORY / "pyproject.toml", folder)  # the options of pytest


def add_sources(folder: Path, sdist: Path) -> None:
    (folder / "sources").mkdir()
    shutil.copy(sdist, folder / "sources")
    json = importlib.util.find_spec("nlohmann_json")
    if json is not None and json.submodule_search_locations:  # else it is a package of the system, as on the machine
        include = Path(json.submodule_search_locations[0], "include", "nlohmann")
        shutil.copytree(include, folder / "json" / "nlohmann")


def add_build(folder: Path, sdist: Path, pair: Pair) -> str:
    """Unpacks a wheel, and lets it name a NaN. Returns why it could not."""
    with zipfile.ZipFile(pair.build_wheel_for_gpu(sdist)) as wheel:
        wheel.extractall(folder)
    command = [pair.python, "-c", build_wheel.FIRST_FINDING]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not any((folder / "torchnan" / "lib").glob("libtorchnan_cuda.so")):
        return "it has no scan for CUDA: there is no nvcc here"
    return "" if build_wheel.NAMED in ended.stderr else f"it names no NaN: {ended.stderr}"


if __name__ == "__main__":
    sys.exit(main())
