"""Asks CMake to build the core and the bindings. No logic of its own."""

import pathlib
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent.resolve()


class CMakeBuild(build_ext):
    """CMake installs the extension, the core library, its headers and its CMake package into the folder torchnan/.

    An editable build (``pip install -e .``, as ``make build`` does) puts them where the Python sources are.
    """

    def build_extension(self, ext: Extension) -> None:
        package = ROOT / "torchnan" if self.editable_mode else pathlib.Path(self.get_ext_fullpath(ext.name)).parent
        build = ROOT / "build" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        configure = [
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DCMAKE_INSTALL_PREFIX={package.resolve()}",
            "-DTORCHNAN_PYTHON=ON",
            f"-DTORCHNAN_EDITABLE={'ON' if self.editable_mode else 'OFF'}",
            "-DTORCHNAN_TESTS=OFF",  # `make test-cpp` builds them in the same folder
        ]
        subprocess.check_call(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *configure])
        subprocess.check_call(["cmake", "--build", build])
        subprocess.check_call(["cmake", "--install", build])

    def copy_extensions_to_source(self) -> None:
        """Nothing: an editable build has been installed there."""


setup(ext_modules=[Extension("torchnan._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
