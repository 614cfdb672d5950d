"""Functions of PyTorch that write memory, or let others write it, without a dispatched operation.

What is known of a storage ends with such a write. ``tests/detection/test_memory_writes.py`` has every function of a
tensor and a storage that is written in C, and what it does to memory.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import torch

from torchnan._load import _C

# Packages that take addresses to compare or to read, or that write there at once: none keeps one to write there later.
_READERS = ("accelerate", "safetensors", "transformers", "triton")


class Hook(NamedTuple):
    """A method that is written in C, a callback, and the arguments of the call that the callback gets."""

    method: Any
    callback: Callable[..., None]
    first: int = 0
    arguments: int = 1
    after: bool = False


def all_hooks() -> list[Hook]:
    """Returns the hooks on functions of tensors, of storages and of :mod:`torch` that this PyTorch has."""
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
        # Whoever has one of these may write there for as long as the storage lives.
        (tensor, "numpy", _C.record_exported),
        (core, "_to_dlpack _to_dlpack_versioned", _C.record_exported),
        (tensor, "data_ptr const_data_ptr untyped_storage", _C.record_address_taken),
        (storage, "data_ptr", _C.record_address_taken),
        # Loops of C over the elements, and reading from a file.
        (tensor, "apply_ map_ map2_", _C.mark_stale, *first, True),
        (storage, "_byteswap _set_from_file", _C.mark_stale, *first, True),
        # The storage gets other memory, and may get back its old one: what was known of that ends before.
        (storage, "resize_ _swap_data_ptr_", _C.mark_stale, *first),
        (storage, "_swap_data_ptr_", _C.mark_stale, *second),
        # A compiled graph reports that it has written into its inputs.
        (core, "_increment_version", _C.mark_all_stale),
        # Other tensors in the same memory, each with a version counter to itself.
        (tensor, "set_", _C.record_aliased, *second),
        (tensor, aliasing, _C.record_aliased),
        (functions, aliasing, _C.record_aliased, *first),
    ]


def data_attribute() -> Any:
    """Returns the descriptor of ``x.data``, whose getter and setter make aliases with version counters of their own."""
    return vars(torch._C.TensorBase)["data"]


def name_address_readers() -> None:
    """Tells the core whose code takes an address without keeping it; all other code is taken to keep it."""
    own = [os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__))]
    packages = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    readers = [os.path.join(folder, name) for folder in sorted(packages) for name in _READERS]
    _C.set_address_readers([os.path.join(folder, "") for folder in own + readers], _intermediate())


def _intermediate() -> list[CodeType]:
    """Returns PyTorch's own functions that return an address or a storage to whoever calls them."""
    tensor, typed = torch.Tensor, torch.storage.TypedStorage
    functions = [tensor.storage, tensor._typed_storage, typed.data_ptr, typed._data_ptr]
    interface = vars(tensor)["__cuda_array_interface__"].fget
    return [function.__code__ for function in (*functions, interface)]
