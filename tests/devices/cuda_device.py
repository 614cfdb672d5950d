"""CUDA as the device of these tests."""

from __future__ import annotations

from collections.abc import Callable

import torch

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


class Cuda:
    """The device, and what programs do with it."""

    def synchronize(self) -> None:
        """Waits for all that has been asked for."""
        torch.cuda.synchronize()

    def count(self, program: Callable[[], object]) -> tuple[int, int]:
        """How often the host waits for the device while the program runs, and copies from it, as CUPTI tells. What
        comes with the tracing is in it, in every program alike."""
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            program()
        names = [event.name for event in profile.events() or ()]
        return sum(name in WAITS for name in names), sum(name.startswith("Memcpy DtoH") for name in names)
