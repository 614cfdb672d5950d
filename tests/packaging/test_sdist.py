"""The source distribution contains everything that a build needs, and nothing that a build left behind."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile

import pytest

import torchnan
from tests.support.processes import REPOSITORY

NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__")
BUILD = "import setuptools.build_meta as backend; backend.build_sdist('dist')"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The names in it, below its top folder, and its metadata."""
    copied = tmp_path_factory.mktemp("sdist") / "copy"
    shutil.copytree(REPOSITORY, copied, ignore=NOT_COPIED)
    subprocess.run([sys.executable, "-c", BUILD], cwd=copied, check=True, capture_output=True)
    (path,) = (copied / "dist").iterdir()
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        metadata = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO").read().decode()
    return path.name, names, metadata


def test_it_has_every_source_that_the_build_reads(sdist):
    _, names, _ = sdist
    needed = {"CMakeLists.txt", "setup.py", "pyproject.toml", "LICENSE", "torchnan_autoload.py", "torchnan/_C.pyi"}
    for folder in ("csrc", "cmake"):
        needed |= {
            str(path.relative_to(REPOSITORY))
            for path in (REPOSITORY / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    assert needed - names == set()


def test_it_has_nothing_that_was_built(sdist):
    _, names, _ = sdist
    built = re.compile(r"\.so$|\.pyc$|torchnan/(_build\.py$|lib/|include/|share/)")
    assert [name for name in names if built.search(name)] == []


def test_it_fits_every_pytorch_and_has_the_version_of_the_package(sdist):
    name, _, metadata = sdist
    assert name == f"torchnan-{torchnan.__version__}.tar.gz"
    assert f"\nVersion: {torchnan.__version__}\n" in metadata
    assert "\nRequires-Dist: torch>=2.11\n" in metadata
