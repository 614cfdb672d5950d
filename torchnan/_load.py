"""Loads the compiled core, or says in one sentence why it cannot be loaded."""

from __future__ import annotations

import ctypes
import sys


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


_api = ctypes.PyDLL(None)
_api.PyInterpreterState_Get.restype = ctypes.c_void_p
_api.PyInterpreterState_GetID.restype = ctypes.c_int64
check_interpreter(_api.PyInterpreterState_GetID(ctypes.c_void_p(_api.PyInterpreterState_Get())))

import torch  # noqa: E402 - crashes in a subinterpreter


def _release(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _remedy(running: str) -> str:
    """Returns the wheel to install for a PyTorch. By file: an index may have another package of that name."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheel = f"torchnan-{_build.version}+torch{_release(running)}-{python}-{python}-*.whl"
    return (
        f"Install {wheel}, or build torchnan for this PyTorch, in the folder of its sources: "
        "pip install --force-reinstall --no-deps ."
    )


def check(built_for: str, running: str) -> None:
    """Rejects a PyTorch for which the core was not built, before any of the core is loaded.

    Raises:
        ImportError: names the PyTorch of the build, the one that is running, and the remedy.
    """
    if _release(built_for) != _release(running):
        raise ImportError(
            f"torchnan was built for PyTorch {built_for}, and this is PyTorch {running}. Its core uses PyTorch's C++ "
            f"internals, which change with every release. {_remedy(running)}"
        )


try:
    from torchnan import _build
except ImportError:
    raise ImportError(
        "torchnan has not been built: this is its source folder. Install it (make build, or pip install .) "
        "and run Python from another folder, or without this one in PYTHONPATH."
    ) from None

check(_build.torch_version, torch.__version__)

try:
    from torchnan import _C as _C
except ImportError as error:
    raise ImportError(
        f"torchnan's core could not be loaded beside PyTorch {torch.__version__}: {error}. {_remedy(torch.__version__)}"
    ) from error
