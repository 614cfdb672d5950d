"""Copies tensors from a device to the CPU without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchnan._load import _C
from torchnan.detection import shards
from torchnan.detection.pause import detection_paused


class AsyncCopy:
    """Copies tensors to pinned CPU memory, in the order of the stream that computes them, without waiting.

    Args:
        tensors: small tensors, by name. The program may modify them afterwards.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with detection_paused(), torch.no_grad():
            local = {name: shards.local(tensor.detach()) for name, tensor in tensors.items()}
            self._copies = {name: part.to("cpu", non_blocking=True, copy=True) for name, part in local.items()}
        devices = {tensor.device for tensor in local.values() if not tensor.is_cpu}  # the CPU has no events
        self._events = [torch.Event(device) for device in devices]
        for event in self._events:
            event.record()

    @staticmethod
    def numbers_on_host(tensors: list[torch.Tensor]) -> list[float | None]:
        """Returns the values of tensors of one element; ``None`` for one that must be copied."""
        return _C.host_numbers(tensors)

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
