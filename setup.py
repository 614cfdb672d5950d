"""Asks CMake to build the core and the bindings.

For the PyTorch of the environment that torchnan is installed into; or one core for each folder of PyTorch in
``TORCH_DIRS`` (separated by ``:``), all in one wheel: ``import torchnan`` takes the one that fits.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent.resolve()
VERSION = re.search(r"^project\(torchnan VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
LOCATE_TORCH = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"


def locate_torch() -> list[pathlib.Path]:
    """Returns the folders of PyTorch to build for, none if there is no PyTorch.

    The environment's own comes first (-I: without what pip adds to the path of an isolated build). A build environment
    has one only where the environment has none.
    """
    if os.environ.get("TORCH_DIRS"):
        return [pathlib.Path(folder).resolve() for folder in os.environ["TORCH_DIRS"].split(os.pathsep)]
    for isolated in (["-I"], []):
        answer = subprocess.run([sys.executable, *isolated, "-c", LOCATE_TORCH], capture_output=True, text=True)
        if answer.returncode == 0:
            return [pathlib.Path(answer.stdout.strip())]
    return []


def release_of(folder: pathlib.Path) -> tuple[int, int]:
    """Returns the minor release of the PyTorch in a folder: ``(2, 13)``."""
    found = re.search(r"^__version__ = '(\d+)\.(\d+)\.", (folder / "version.py").read_text(), re.MULTILINE)
    return int(found[1]), int(found[2])


def requirement(releases: list[tuple[int, int]]) -> str:
    """Returns what the wheel requires: exactly the releases that it has a core for, ``torch>=2.11,<2.16``."""
    (major, first), (_, last) = min(releases), max(releases)
    missing = [minor for minor in range(first, last) if (major, minor) not in releases]
    return f"torch>={major}.{first},<{major}.{last + 1}" + "".join(f",!={major}.{minor}.*" for minor in missing)


class CMakeBuild(build_ext):
    """CMake installs the extension, the core library, its headers and its CMake package into the folder torchnan/.

    An editable build, by ``pip install -e .`` or ``build_ext --inplace``, puts them where the Python sources are.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.editable_mode = bool(self.editable_mode or self.inplace)

    def build_extension(self, ext: Extension) -> None:
        package = ROOT / "torchnan" if self.editable_mode else pathlib.Path(self.get_ext_fullpath(ext.name)).parent
        if self.editable_mode:
            shutil.rmtree(package / "lib", ignore_errors=True)  # cores of earlier sources, for another PyTorch
        for folder in TORCH:
            self._build_core(folder, package)

    def _build_core(self, torch: pathlib.Path, package: pathlib.Path) -> None:
        # The cache of an earlier build may name tools of an isolated environment that is gone: --fresh drops it.
        build, fresh = ROOT / "build" / f"python{sys.version_info.major}.{sys.version_info.minor}", []
        if not self.editable_mode:
            build, fresh = build.with_name("{}-torch{}.{}".format(build.name, *release_of(torch))), ["--fresh"]
        configure = [
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DCMAKE_INSTALL_PREFIX={package.resolve()}",
            f"-DTORCHNAN_TORCH_DIR={torch}",
            "-DTORCHNAN_PYTHON=ON",
            f"-DTORCHNAN_EDITABLE={'ON' if self.editable_mode else 'OFF'}",
            "-DTORCHNAN_TESTS=OFF",  # `make test-cpp` builds them in the same folder
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        subprocess.check_call(["cmake", *fresh, "-S", ROOT, "-B", build, "-G", "Ninja", *configure])
        subprocess.check_call(["cmake", "--build", build])
        subprocess.check_call(["cmake", "--install", build])

    def copy_extensions_to_source(self) -> None:
        """Nothing: an editable build has been installed there."""


TORCH = locate_torch()
SUPPORTED = "torch>=2.11"
IS_BINARY = TORCH != [] and "sdist" not in sys.argv

setup(
    version=VERSION,
    install_requires=[requirement([release_of(folder) for folder in TORCH]) if IS_BINARY else SUPPORTED],
    setup_requires=[] if TORCH else [SUPPORTED],
    ext_modules=[Extension("torchnan._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
