"""torchnan reads Python's frames directly, and their layout is internal to Python: tested with every available
version."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging import build_wheel
from tests.support.processes import REPOSITORY, run

NATIVE = Path(__file__).resolve().parent / "native"


def interpreter(version: str) -> str | None:
    """This Python for its own version; for others, a working one from the path or from pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # A folder of another user may not be readable; there glob.glob() finds nothing, where Path.glob() raises.
    candidates = [shutil.which(f"python{version}"), *glob.glob(f"{pyenv}/versions/{version}.*/bin/python3")]
    return next((found for found in candidates if found and run([found, "--version"]).returncode == 0), None)


@pytest.mark.parametrize("version", build_wheel.PYTHONS)
def test_the_stack_that_is_read_is_the_stack_that_python_shows(version, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    include = run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"]).stdout.strip()
    if not Path(include, "Python.h").exists():
        pytest.skip(f"no headers of Python {version} on this machine")
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler is not None
    sources = [NATIVE / "frame_walk_module.cpp", REPOSITORY / "csrc" / "python" / "frame_walk.cpp"]
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-I{REPOSITORY / 'csrc'}", f"-I{include}"]
    subprocess.run([compiler, *flags, *sources, "-o", tmp_path / "frame_walk_module.so"], check=True)
    ended = run([python, str(NATIVE / "frame_walk_check.py"), str(tmp_path)])
    assert ended.returncode == 0, ended.stderr
