"""What a stage runs on."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import torch

import torchnan
from benchmarks.gpu import models
from benchmarks.workloads import Workload


@dataclasses.dataclass
class Bench:
    """The device, and the time that a stage has.

    Attributes:
        machine: of tests/devices: how to wait for the device, count and trace.
        device: the device.
        is_gpu: whether the figures of the device count. If not, stages use small sizes.
        end: when the stage is cut off, of ``time.monotonic()``.
    """

    machine: Any
    device: torch.device
    is_gpu: bool
    end: float

    @property
    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    def workload(self, name: str) -> Workload:
        """Returns a fresh model, the same one each time, after giving back the memory of those that are gone."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()
        torch.manual_seed(0)
        return models.ALL[name](self.device, small=not self.is_gpu)

    def time(self, step: Callable[[], object], steps: int) -> float:
        """Returns milliseconds of a step on the device; 1 on a device whose times mean nothing."""
        if not self.is_gpu:
            for _ in range(steps):
                step()
            self.machine.synchronize()
            return 1.0
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / steps


def origins(watch: torchnan.detect) -> list[str]:
    """Returns the operations that made the values of the findings."""
    return [finding.op for finding in watch.findings if finding.level == "error"]
