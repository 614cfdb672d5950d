"""Walks nested batches and model outputs: mappings, sequences and dataclasses of tensors, in any mixture."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch


def items_of(value: Any) -> list[tuple[str, Any]] | None:
    """Returns the parts of a value, each with its path (``"['labels']"``, ``"[0]"``, ``".loss"``); ``None`` for a value
    without parts. PyTorch's own pytree treats a dataclass as a leaf.
    """
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def tensors_in(value: Any, where: str) -> list[tuple[str, torch.Tensor]]:
    """Returns the tensors in a value, with paths such as ``batch['labels']``."""
    if isinstance(value, torch.Tensor):
        return [(where, value)]
    found = []
    for part, item in items_of(value) or ():
        found += tensors_in(item, f"{where}{part}")
    return found


def rows_of(batch: Any) -> int:
    """Returns the length of the first dimension that all tensors of a batch share; 1 if they share none."""
    lengths = {tensor.shape[0] for _, tensor in tensors_in(batch, "") if tensor.dim() > 0}
    return lengths.pop() if len(lengths) == 1 else 1


def map_tensors(value: Any, change: Callable[[str, torch.Tensor], Any], where: str = "") -> Any:
    """Returns a copy of a value in which each tensor is replaced by ``change(path, tensor)``. Classes and everything
    else stay the same. The value itself is not changed.
    """
    if isinstance(value, torch.Tensor):
        return change(where, value)
    items = items_of(value)
    if items is None:
        return value
    changed = [map_tensors(item, change, f"{where}{part}") for part, item in items]
    if isinstance(value, Mapping):
        return _mapping_like(value, dict(zip(value, changed, strict=True)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple.__new__(type(value), changed)  # its constructor may do anything
    if isinstance(value, list | tuple):
        return type(value)(changed)
    made: Any = copy.copy(value)
    for field, item in zip(dataclasses.fields(value), changed, strict=True):
        object.__setattr__(made, field.name, item)  # the class may be frozen
    return made


def _mapping_like(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Returns a mapping with other items. Model outputs have attributes of the same names, which assignment keeps."""
    if type(value) is dict:
        return items
    if not isinstance(value, MutableMapping):
        return type(value)(items)  # type: ignore[call-arg]
    made = copy.copy(value)
    for key, item in items.items():
        made[key] = item
    return made
