"""Numbers that are still being computed on another device: copied as they come, read when they are there."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchnan.detection import shards
from torchnan.detection.pause import detection_paused


class AsyncCopy:
    """Copies of tensors on their way to the CPU, to pinned memory, in the order of the stream that computes them.
    Nobody waits for them.

    Args:
        tensors: small ones, of any device, by name.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with detection_paused(), torch.no_grad():
            local = {name: shards.local(tensor.detach()) for name, tensor in tensors.items()}
            devices = {tensor.device for tensor in local.values() if not tensor.is_cpu}
            # What is on the CPU may be written to before the rest has come.
            self._copies = {
                name: tensor.clone() if tensor.is_cpu and devices else tensor.to("cpu", non_blocking=True)
                for name, tensor in local.items()
            }
        self._events = [torch.Event(device) for device in devices]
        for event in self._events:
            event.record()

    @property
    def is_ready(self) -> bool:
        """Whether reading them waits for nothing."""
        return all(event.query() for event in self._events)

    def values(self) -> dict[str, torch.Tensor]:
        """The tensors, on the CPU. Waits for what is not there yet."""
        for event in self._events:
            event.synchronize()
        return self._copies


def to_float(tensor: torch.Tensor) -> float:
    """The value of a tensor of one element, of the CPU."""
    with detection_paused():
        return float(tensor.item())
