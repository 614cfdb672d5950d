"""Asks CMake to build the core and the binding, and copies the result. No logic of its own."""

import pathlib
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent.resolve()


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        package = pathlib.Path(self.get_ext_fullpath(ext.name)).parent.resolve()
        build = ROOT / "build" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        configure = [
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DCMAKE_INSTALL_PREFIX={package}",
            "-DTORCHNAN_PYTHON=ON",
            "-DTORCHNAN_TESTS=OFF",  # `make test-cpp` builds them in the same folder
        ]
        subprocess.check_call(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *configure])
        subprocess.check_call(["cmake", "--build", build])
        subprocess.check_call(["cmake", "--install", build])


setup(ext_modules=[Extension("torchnan._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
