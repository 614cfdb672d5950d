"""Copies tensors from a device to the CPU without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchnan.detection import shards
from torchnan.detection.pause import detection_paused


class AsyncCopy:
    """Copies tensors to pinned CPU memory, in the order of the stream that computes them, without waiting.

    Args:
        tensors: small tensors on any device, by name.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with detection_paused(), torch.no_grad():
            local = {name: shards.local(tensor.detach()) for name, tensor in tensors.items()}
            devices = {tensor.device for tensor in local.values() if not tensor.is_cpu}
            # CPU tensors are cloned: they may be modified before the copies have arrived.
            self._copies = {
                name: tensor.clone() if tensor.is_cpu and devices else tensor.to("cpu", non_blocking=True)
                for name, tensor in local.items()
            }
        self._events = [torch.Event(device) for device in devices]
        for event in self._events:
            event.record()

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`values` returns without waiting."""
        return all(event.query() for event in self._events)

    def values(self) -> dict[str, torch.Tensor]:
        """Returns the tensors on the CPU; waits for those that have not arrived."""
        for event in self._events:
            event.synchronize()
        return self._copies


def to_float(tensor: torch.Tensor) -> float:
    """Returns the value of a CPU tensor with one element."""
    with detection_paused():
        return float(tensor.item())
