"""Builds and tests torchnan with pairs of a Python and a PyTorch, and writes the table that README shows.

``python -m tests.versions.run [3.12/2.14 ...]``. Each pair has a separate environment under build/versions, made by uv.
torchnan is installed there from its source distribution, and the tests run in a folder without its sources. A pair that
is not run keeps its last result; a pair that was never run is not in the table.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.packaging import build_wheel
from tests.versions import results_table

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build" / "versions"
PAIRS = [f"{python}/{torch}" for torch in build_wheel.RELEASES for python in build_wheel.PYTHONS]
BUILD_TOOLS = ["pip", "setuptools>=77", "wheel", "cmake>=3.24", "ninja", "nlohmann-json==3.12.0"]
TEST_TOOLS = [
    "numpy",
    "pytest==9.2.0",
    "pytest-xdist==3.8.0",
    "pytest-timeout==2.4.0",
    "hypothesis",
    "expecttest",
    "safetensors",
    "transformers",
]
QUICK = [f"tests/detection/test_{name}.py" for name in ("detect", "backward", "optimizer", "guard", "report", "options",
         "dispatch_facts", "bounds", "compiled_regions", "findings_log", "headroom", "unnoticed")]  # fmt: skip
DEADLINE = 3600  # seconds a step; only a hang reaches it


class Pair:
    """One Python and one PyTorch, with the environment that they share."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.python_version, self.torch_release = name.split("/")
        self.folder = WORK / f"python{self.python_version}-torch{self.torch_release}"
        self.python = self.folder / "venv" / "bin" / "python"
        self.log = self.folder / "log.txt"

    def run(self, sdist: Path) -> dict[str, str]:
        """Returns the row of the table; what the steps printed is in the log."""
        try:
            self._make_environment()
            self._install(sdist)
            row = {"torch": self._printed("import torch; print(torch.__version__)")}
        except subprocess.CalledProcessError as error:
            return {"outcome": f"does not build: {' '.join(map(str, error.cmd[:4]))}"}
        return row | self._test()

    def build_wheel_for_gpu(self, sdist: Path) -> Path:
        """Returns a wheel with the scan for CUDA."""
        self._make_environment()
        built = self.folder / "wheel"
        shutil.rmtree(built, ignore_errors=True)
        self._build(sdist, "wheel", "-w", built, cuda="ON")
        return next(built.glob("*.whl"))

    def _make_environment(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        if not self.python.exists():
            self._call("uv", "venv", "-q", "--python", self.python_version, self.folder / "venv")
        wanted = [f"torch=={self.torch_release}.*", *BUILD_TOOLS, *TEST_TOOLS]
        self._call("uv", "pip", "install", "-q", "--python", self.python, *wanted)

    def _install(self, sdist: Path) -> None:
        """Installs the source distribution for the PyTorch of the environment."""
        source = self._build(
            sdist, "install", "--force-reinstall", cuda="OFF"
        )  # which knows no PyTorch, and takes long
        (build,) = (source / "build").glob("python*-torch*")
        self._call("cmake", "--build", build, "--target", "_testing")
        (self._testing,) = (build / "csrc" / "python").glob("_testing*.so")

    def _build(self, sdist: Path, *command: str | Path, cuda: str) -> Path:
        """Builds the source distribution with a command of pip; returns the folder of the sources.

        PyTorch is under one path for all Pythons, so that ccache compiles files that do not depend on Python once for
        each PyTorch.
        """
        torch = self._linked("torch", f"torch{self.torch_release}")
        json = self._linked("nlohmann_json", "nlohmann_json") / "include"
        shutil.rmtree(self.folder / "source", ignore_errors=True)
        source = build_wheel.unpack(sdist, self.folder / "source")
        options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "-q"]
        cmake = [f"-DTORCHNAN_TORCH_DIR={torch}", f"-DTORCHNAN_JSON_INCLUDE={json}", f"-DTORCHNAN_CUDA={cuda}"]
        self._call(self.python, "-m", "pip", *command, *options, source, CMAKE_ARGS=" ".join(cmake))
        return source

    def _linked(self, package: str, name: str) -> Path:
        """Returns a link to the folder of a package of the environment, of the same name for every environment."""
        link = WORK / name
        link.unlink(missing_ok=True)
        link.symlink_to(self._printed(f"import {package}; print({package}.__path__[0])"))
        return link

    def _test(self) -> dict[str, str]:
        """Runs the quick tests, and the programs with a known origin."""
        place = self.folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        for folder in ("tests", "benchmarks", "docs", "examples"):
            shutil.copytree(REPOSITORY / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", place)
        tests = [self.python, "-m", "pytest", "--tier=sample", "-p", "no:cacheprovider", "-n", "2", *QUICK]
        self._call(*tests, cwd=place, check=False, OMP_NUM_THREADS="1", TESTING_EXTENSION=str(self._testing))
        counts = re.findall(r"(\d+) (passed|failed|skipped|error)", self.log.read_text()[-400:])
        zoo = ["tests/zoo/score.py", "--adapter", "tests/zoo/adapter.py", "--zoo", "tests/zoo/programs/open"]
        self._call(self.python, *zoo, cwd=place, check=False)
        score = re.search(r"exact origin (\d+ of \d+), false alarms (\d+) of", self.log.read_text()[-2000:])
        outcome = ", ".join(f"{count} {what}" for count, what in counts) or "the tests did not end"
        return {"outcome": outcome, "origins": score[1] if score else "not scored", "alarms": score[2] if score else ""}

    def _printed(self, code: str) -> str:
        return subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()

    def _call(self, *command: str | Path, cwd: Path | None = None, check: bool = True, **variables: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHNAN", "PYTHON"))}
        environment |= {"PATH": f"{self.python.parent}:{os.environ['PATH']}", **variables}
        with self.log.open("a") as log:
            print("$", *command, file=log, flush=True)
            subprocess.run(command, cwd=cwd, env=environment, stdout=log, stderr=log, timeout=DEADLINE, check=check)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", default=PAIRS, help="PYTHON/PYTORCH (default: all)")
    given = parser.parse_args()
    sdist = build_wheel.build_sdist()
    failed = False
    for pair in map(Pair, given.pairs):
        print(f"Python {pair.python_version}, PyTorch {pair.torch_release}: see {pair.log}", flush=True)
        row = pair.run(sdist)
        results_table.record(pair.name, row)
        print(f"  {row}", flush=True)
        failed |= not results_table.is_good(row)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
