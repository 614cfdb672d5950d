"""Finds the dataset item that a ``DataLoader`` is reading, from the frames of its fetcher."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from torchnan._load import _C

_MAX_DEPTH = 4  # of a sample


def current(storage: int, address: int) -> str:
    """Returns the index of the item that this thread is making, or that contains a tensor, as text; else ``""``.

    Args:
        storage: of the tensor, as returned by ``_C.storage_of``.
        address: of its first element.
    """
    fetch = sys.modules.get("torch.utils.data._utils.fetch")  # not imported means that there is no DataLoader
    if fetch is None:
        return ""
    frame = next((one for one in _frames() if one.f_code.co_filename == fetch.__file__), None)
    if frame is None:
        return ""
    if "idx" in frame.f_locals:  # in the loop over the indices of a batch
        return _shown(frame.f_locals["idx"])
    names = frame.f_locals
    if not isinstance(names.get("self"), fetch._MapDatasetFetcher):
        return ""
    indices, samples = names["possibly_batched_index"], names.get("data", ())
    if not names["self"].auto_collation:
        return _shown(indices)
    held = (index for index, sample in zip(indices, samples, strict=False) if _holds(sample, storage, address))
    return _shown(next(held, None))


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _shown(index: Any) -> str:
    """Indices other than numbers and text stay unknown, because showing them may run user code."""
    if isinstance(index, (str, bytes)):
        return repr(index)
    try:
        return "" if isinstance(index, torch.Tensor) else str(operator.index(index))
    except TypeError:
        return ""


def _holds(sample: Any, storage: int, address: int, depth: int = 0) -> bool:
    if isinstance(sample, torch.Tensor):
        return _C.storage_of(sample) == storage
    if isinstance(sample, (dict, list, tuple)):
        parts = sample.values() if isinstance(sample, dict) else sample
        return depth < _MAX_DEPTH and any(_holds(part, storage, address, depth + 1) for part in parts)
    numpy = sys.modules.get("numpy")
    if numpy is None or type(sample) is not numpy.ndarray:
        return False
    begin = sample.__array_interface__["data"][0]
    return bool(begin <= address < begin + sample.nbytes)
