"""examples/libtorch: a C++ program that finds the installed package with CMake, and no Python in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import torchnan
from tests.support.processes import REPOSITORY, run


def test_a_cpp_program_builds_against_the_package_and_names_its_nan(tmp_path):
    cmake = shutil.which("cmake", path=str(Path(__import__("sys").executable).parent)) or shutil.which("cmake")
    if cmake is None:
        pytest.fail("cmake is needed: pip install cmake")
    source, build = REPOSITORY / "examples" / "libtorch", tmp_path / "build"
    configured = run([cmake, "-S", str(source), "-B", str(build), f"-DCMAKE_PREFIX_PATH={torchnan.__path__[0]}"])
    assert configured.returncode == 0, configured.stderr
    built = run([cmake, "--build", str(build)])
    assert built.returncode == 0, built.stdout + built.stderr
    program = build / "finds_a_nan"
    ended = run([str(program)])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "step 2: loss" in ended.stdout
    assert "step 3: loss" not in ended.stdout
    assert "torchnan: NaN at step 3 (cpu)" in ended.stdout
    assert "made by   aten::div, output 0" in ended.stdout
    assert "libpython" not in run(["ldd", str(program)]).stdout
