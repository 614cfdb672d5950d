"""The folder that is carried to a machine with a GPU has what the calls need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.packaging import gpu_package
from tests.packaging.test_sdist import NOT_COPIED
from tests.support.processes import REPOSITORY


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """One that has the sources alone: a build takes long."""
    copied, folder = (tmp_path_factory.mktemp("gpu") / name for name in ("copy", "package"))
    shutil.copytree(REPOSITORY, copied, ignore=NOT_COPIED)  # other tests read the sources meanwhile
    command = [sys.executable, "-m", "tests.packaging.gpu_package", str(folder), "--sources"]
    subprocess.run(command, cwd=copied, check=True, capture_output=True)
    return folder


def test_it_has_the_tests_the_benchmarks_and_what_a_build_needs(package):
    for name in ("tests/gpu/test_cuda.py", "tests/devices/conftest.py", "tests/zoo/score.py", "tests/conftest.py"):
        assert (package / name).is_file()
    assert (package / "json" / "nlohmann" / "json.hpp").is_file()
    (sources,) = (package / "sources").iterdir()
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "setup.py", "csrc/device/cuda/scan_kernel.cu"} <= names


def test_it_can_be_carried(package):
    files = [file for file in package.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < gpu_package.LARGEST
    assert not [file for file in files if file.suffix in (".so", ".pyc")]


def test_a_build_that_fails_there_is_reported_with_its_reason(package, tmp_path):
    """Where torchnan cannot be imported, the call builds it; here CMake is given an option that it rejects."""
    (tmp_path / "torchnan.py").write_text("raise ImportError('built for another PyTorch')\n")
    command = [sys.executable, "-m", "benchmarks.gpu", "1", str(tmp_path / "out"), "--device=lagging"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CMAKE_ARGS": "-DTORCHNAN_TORCH_DIR=/nowhere"}
    ended = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    page = (tmp_path / "out" / "call-1.txt").read_text()
    assert page in ended.stdout
    with tarfile.open(tmp_path / "out" / "call-1.tar.gz") as packed:
        assert "build.log" in packed.getnames()
    assert "built for another PyTorch" in page
    assert "FAIL  torchnan was not built; build.log has more:" in page
    assert "torchnan needs PyTorch 2.11 or later: there is no /nowhere/" in " ".join(page.split())  # CMake breaks lines
