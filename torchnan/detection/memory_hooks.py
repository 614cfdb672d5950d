"""Hooks on functions of PyTorch that write memory, or let others write it, without a dispatched operation.

Such a write ends the records about a storage. ``tests/detection/test_memory_writes.py`` lists every function of a
tensor and a storage that is written in C, and its effect on memory.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import torch

from torchnan._load import _C

# Packages that take addresses to compare, to read or to write at once; they do not keep one to write there later.
_READERS = ("accelerate", "safetensors", "transformers", "triton")


class Hook(NamedTuple):
    """A method written in C, a callback, and the call arguments that the callback gets."""

    method: Any
    callback: Callable[..., None]
    first: int = 0
    arguments: int = 1
    after: bool = False


def all_hooks() -> list[Hook]:
    """Returns the hooks for the functions of tensors, storages and :mod:`torch` that exist in this PyTorch."""
    return [
        Hook(getattr(holder, name), *how)
        for holder, names, *how in _table()
        for name in names.split()
        if hasattr(holder, name)
    ]


def _table() -> list[tuple[Any, ...]]:
    """Returns rows of a holder, the names of its functions, and the other fields of their :class:`Hook`."""
    tensor, storage, core, functions = torch._C.TensorBase, torch._C.StorageBase, torch._C, torch._C._VariableFunctions
    aliasing = "unsafe_chunk unsafe_split unsafe_split_with_sizes"
    first, second = (0, 1), (1, 1)
    return [
        # The holder of one of these may write there for as long as the storage lives.
        (tensor, "numpy", _C.record_exported),
        (core, "_to_dlpack _to_dlpack_versioned", _C.record_exported),
        (tensor, "data_ptr const_data_ptr untyped_storage", _C.record_address_taken),
        (storage, "data_ptr", _C.record_address_taken),
        # Loops of C over the elements, and reading from a file.
        (tensor, "apply_ map_ map2_", _C.mark_stale, *first, True),
        (storage, "_byteswap _set_from_file", _C.mark_stale, *first, True),
        # The storage gets other memory, and may later get its old memory back: the old records end before that.
        (storage, "resize_ _swap_data_ptr_", _C.mark_stale, *first),
        (storage, "_swap_data_ptr_", _C.mark_stale, *second),
        # A compiled graph reports that it has written into its inputs.
        (core, "_increment_version", _C.mark_all_stale),
        # Other tensors in the same memory, each with a separate version counter.
        (tensor, "set_", _C.record_aliased, *second),
        (tensor, aliasing, _C.record_aliased),
        (functions, aliasing, _C.record_aliased, *first),
    ]


def data_attribute() -> Any:
    """Returns the descriptor of ``x.data``, whose getter and setter make aliases with separate version counters."""
    return vars(torch._C.TensorBase)["data"]


def name_address_readers() -> None:
    """Tells the core which code takes an address without keeping it; all other code counts as keeping it."""
    own = [os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__))]
    packages = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    readers = [os.path.join(folder, name) for folder in sorted(packages) for name in _READERS]
    _C.set_address_readers([os.path.join(folder, "") for folder in own + readers], _intermediate())


def _intermediate() -> list[CodeType]:
    """Returns PyTorch's own functions that return an address or a storage to their caller."""
    tensor, typed = torch.Tensor, torch.storage.TypedStorage
    functions = [tensor.storage, tensor._typed_storage, typed.data_ptr, typed._data_ptr]
    interface = vars(tensor)["__cuda_array_interface__"].fget
    return [function.__code__ for function in (*functions, interface)]
