"""Copies tensors from a device to the CPU without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchnan.detection import shards
from torchnan.detection.pause import detection_paused


class AsyncCopy:
    """Copies tensors to pinned CPU memory, in the order of the stream that computes them, without waiting.

    Args:
        tensors: small tensors on devices, by name.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with detection_paused(), torch.no_grad():
            local = {name: shards.local(tensor.detach()) for name, tensor in tensors.items()}
            self._copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in local.items()}
        devices = {tensor.device for tensor in local.values() if not tensor.is_cpu}  # the CPU has no events
        self._events = [torch.Event(device) for device in devices]
        for event in self._events:
            event.record()

    @staticmethod
    def is_needed(tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is on a device, which may still be computing it."""
        return not shards.local(tensor).is_cpu

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`values` returns without waiting."""
        return all(event.query() for event in self._events)

    def values(self) -> dict[str, torch.Tensor]:
        """Returns the tensors on the CPU; waits for those that have not arrived."""
        for event in self._events:
            event.synchronize()
        return self._copies


def to_floats(tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Returns the values of CPU tensors with one element."""
    with detection_paused():
        return {name: float(shards.local(tensor).item()) for name, tensor in tensors.items()}
