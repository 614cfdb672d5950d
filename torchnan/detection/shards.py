"""Finds the part of a distributed tensor that is on this rank."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def _as_dtensor(tensor: torch.Tensor) -> DTensor | None:
    module = sys.modules.get("torch.distributed.tensor")  # not imported means that there is no DTensor
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None


def is_sharded(tensor: torch.Tensor) -> bool:
    """Returns whether this rank may have only a part of a tensor."""
    return _as_dtensor(tensor) is not None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part, which shares memory with the tensor; the tensor itself if it is not distributed."""
    distributed = _as_dtensor(tensor)
    return tensor if distributed is None else distributed._local_tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the full tensor on every rank; the tensor itself if it is not distributed. All ranks must call it."""
    distributed = _as_dtensor(tensor)
    return tensor if distributed is None else distributed.full_tensor()


def replicas(tensor: torch.Tensor, ranks: int) -> int:
    """Returns how many of ``ranks`` ranks have the same part of a tensor: all, if it is not distributed."""
    distributed = _as_dtensor(tensor)
    if distributed is None:
        return ranks
    mesh, placements = distributed.device_mesh, distributed.placements
    copies = 1
    for dimension, placement in enumerate(placements):
        if placement.is_replicate():
            copies *= mesh.size(dimension)
    return copies
