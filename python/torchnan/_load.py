"""Loads the compiled core, or says in one sentence why it cannot be."""

from __future__ import annotations

import torch


def _release(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _why_not(error: ImportError) -> str:
    return (
        f"torchnan's compiled core could not be loaded beside PyTorch {torch.__version__}: {error}. "
        "It is made for one release of PyTorch; make it again for this one: "
        "pip install --no-build-isolation --force-reinstall --no-deps torchnan"
    )


try:
    from torchnan import _C
except ImportError as error:
    raise ImportError(_why_not(error)) from error

if _release(_C.built_for_torch) != _release(torch.__version__):
    raise ImportError(
        f"torchnan was built for PyTorch {_C.built_for_torch}, this is PyTorch {torch.__version__}. "
        "Its core uses PyTorch's C++ internals, which change with every release. Make it again for this one: "
        "pip install --no-build-isolation --force-reinstall --no-deps torchnan"
    )
