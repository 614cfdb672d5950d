"""Loads the compiled core that fits this PyTorch, or says in one sentence why none can be loaded."""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING


def check_interpreter(number: int) -> None:
    """Rejects every interpreter of a process except the first: PyTorch itself crashes in the others.

    Raises:
        ImportError: this is not the first interpreter.
    """
    if number != 0:
        raise ImportError(
            f"torchnan was imported in subinterpreter {number}. PyTorch does not work there: use the main interpreter "
            "of a separate process."
        )


def check_gil(is_enabled: bool) -> None:
    """Rejects a free-threaded interpreter that runs without the GIL.

    Raises:
        ImportError: the GIL is off.
    """
    if not is_enabled:
        raise ImportError(
            "torchnan was imported while the GIL is off. It counts the switches of the GIL to notice that another "
            "thread may have written to a tensor, so without them it would miss a NaN. Start Python with the GIL: "
            "PYTHON_GIL=1 or -X gil=1."
        )


_api = ctypes.PyDLL(None)
_api.PyInterpreterState_Get.restype = ctypes.c_void_p
_api.PyInterpreterState_GetID.restype = ctypes.c_int64
check_interpreter(_api.PyInterpreterState_GetID(ctypes.c_void_p(_api.PyInterpreterState_Get())))
check_gil(getattr(sys, "_is_gil_enabled", lambda: True)())  # Python 3.13 added it

import torch  # noqa: E402 - crashes in a subinterpreter

LIBRARIES = os.path.join(os.path.dirname(__file__), "lib")
REMEDY = "Build torchnan for this PyTorch, in the folder of its sources: pip install --force-reinstall --no-deps ."


def releases() -> list[str]:
    """Returns the releases of PyTorch that this package has a core for: ``["2.12", "2.13"]``."""
    folders = os.listdir(LIBRARIES) if os.path.isdir(LIBRARIES) else []
    found = [name.removeprefix("torch") for name in folders if name.startswith("torch")]
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def folder_for(running: str) -> str:
    """Returns the folder with the core for a version of PyTorch.

    Raises:
        ImportError: there is none; names the PyTorch that is running, those that have a core, and the remedy.
    """
    release = ".".join(running.split("+")[0].split(".")[:2])
    folder = os.path.join(LIBRARIES, f"torch{release}")
    if os.path.isdir(folder):
        return folder
    if not releases():
        raise ImportError(
            "torchnan has not been built: this is its source folder. Install it (make build, or pip install .) "
            "and run Python from another folder, or without this one in PYTHONPATH."
        )
    raise ImportError(
        f"torchnan was built for PyTorch {', '.join(releases())}, and this is PyTorch {running}. Its core "
        f"uses PyTorch's C++ internals, which change with every release. {REMEDY}"
    )


def load_core(folder: str) -> ModuleType:
    """Returns ``torchnan._C`` from a folder.

    Raises:
        ImportError: it is not there for this Python, or the libraries of this PyTorch do not fit it.
    """
    name = "torchnan._C"
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or spec.loader is None:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        raise ImportError(f"{folder} has no core for {python}. {REMEDY}")
    try:
        core = module_from_spec(spec)
        sys.modules[name] = core
        spec.loader.exec_module(core)
    except ImportError as error:
        sys.modules.pop(name, None)
        raise ImportError(
            f"torchnan's core could not be loaded beside PyTorch {torch.__version__}: {error}. {REMEDY}"
        ) from error
    return core


if TYPE_CHECKING:
    from torchnan import _C as _C
else:
    _C = load_core(folder_for(torch.__version__))
