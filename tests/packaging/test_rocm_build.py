"""The kernel library builds for ROCm too. No GPU of AMD has run it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = f"""
cmake_minimum_required(VERSION 3.24)
project(kernel CXX)
set(PROJECT_SOURCE_DIR {ROOT})
list(APPEND CMAKE_MODULE_PATH {ROOT}/cmake)
include(Cuda)
add_subdirectory({ROOT}/csrc/device/cuda kernel)
"""


def configure(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configures a project that has the kernel library alone."""
    (folder / "CMakeLists.txt").write_text(PROJECT)
    command = ["cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", "-DTORCHNAN_CUDA=HIP", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("hipcc") is None, reason="needs hipcc")
def test_the_library_compiles_and_links(tmp_path):
    configured = configure(tmp_path, "-DTORCHNAN_HIP_ARCHITECTURES=gfx90a;gfx1030")
    assert configured.returncode == 0, configured.stderr
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    library = ctypes.CDLL(str(tmp_path / "build" / "kernel" / "libtorchnan_cuda.so"))
    assert library.torchnan_cuda_abi() > 0
    library.torchnan_cuda_error_text.restype = ctypes.c_char_p
    assert library.torchnan_cuda_error_text(2) == b"hipErrorOutOfMemory"


def test_without_rocm_the_switch_says_what_is_missing(tmp_path):
    configured = configure(tmp_path, "-DTORCHNAN_HIPCC=OFF")
    assert configured.returncode != 0
    assert "TORCHNAN_CUDA=HIP, but there is no hipcc or no libamdhip64" in configured.stderr
