"""Asks CMake to build the core and the bindings, for the PyTorch of the environment that torchnan is installed into."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent.resolve()
VERSION = re.search(r"^project\(torchnan VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
LOCATE_TORCH = """
import importlib.metadata, importlib.util
print(importlib.metadata.version("torch"), importlib.util.find_spec("torch").submodule_search_locations[0])
"""


def locate_torch() -> tuple[str, str] | None:
    """Returns release and folder of the PyTorch to build for, ``None`` if there is none: ``("2.13", ".../torch")``.

    The environment's own comes first (-I: without what pip adds to the path of an isolated build). A build environment
    has one only where the environment has none.
    """
    for isolated in (["-I"], []):
        answer = subprocess.run([sys.executable, *isolated, "-c", LOCATE_TORCH], capture_output=True, text=True)
        if answer.returncode == 0:
            version, folder = answer.stdout.strip().split(" ", 1)
            return ".".join(version.split(".")[:2]), folder
    return None


class CMakeBuild(build_ext):
    """CMake installs the extension, the core library, its headers and its CMake package into the folder torchnan/.

    An editable build, by ``pip install -e .`` or ``build_ext --inplace``, puts them where the Python sources are.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.editable_mode = bool(self.editable_mode or self.inplace)

    def build_extension(self, ext: Extension) -> None:
        package = ROOT / "torchnan" if self.editable_mode else pathlib.Path(self.get_ext_fullpath(ext.name)).parent
        release, folder = TORCH
        # The cache of an earlier build may name tools of an isolated environment that is gone: --fresh drops it.
        build, fresh = ROOT / "build" / f"python{sys.version_info.major}.{sys.version_info.minor}", []
        if not self.editable_mode:
            build, fresh = build.with_name(f"{build.name}-torch{release}"), ["--fresh"]
        configure = [
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DCMAKE_INSTALL_PREFIX={package.resolve()}",
            f"-DTORCHNAN_TORCH_DIR={folder}",
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
IS_BINARY = TORCH is not None and "sdist" not in sys.argv

setup(
    # A binary fits one release of PyTorch; its local version tells the wheels of several releases apart.
    version=f"{VERSION}+torch{TORCH[0]}" if IS_BINARY else VERSION,
    install_requires=[f"torch=={TORCH[0]}.*"] if IS_BINARY else ["torch>=2.12"],
    setup_requires=[] if TORCH else ["torch>=2.12"],
    ext_modules=[Extension("torchnan._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
