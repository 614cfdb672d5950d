"""Measures how long a Monitor takes in a guarded step. Its share is too small for a ratio of whole steps: its own calls
are timed, in the CPU time of their thread, with a full window and all periodic work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torchnan
from benchmarks import modes
from benchmarks.workloads import Workload
from torchnan.detection.containment import Failures
from torchnan.training.guard.snapshots import TrainingState
from torchnan.training.guard.step_observer import StepMonitor, StepObserver
from torchnan.training.monitor.row import Row

STEPS = 40  # a multiple of what the Monitor counts by
CALLS = ("begin_step", "add_batch", "add_loss", "add_run", "new_instabilities", "end_step")


def microseconds(workload: Workload) -> float:
    """Returns the time per step, on average."""
    monitor = modes.monitor()
    timed = TimedMonitor(monitor)
    guard = modes.guard_of(workload, monitor=timed)
    first = guard.step(workload.batch)
    loss = 0.0 if first.loss is None else first.loss.item()
    for i in range(2, 1001):
        factor = 1.0 + 0.05 * math.sin(7.0 * i)
        row = Row(i, loss=loss * factor, grad_norm=first.norm * factor, lr=[1e-4], batch_digest=f"{i:016x}")
        monitor.record.diagnose(row)
    guard.step_number = 1000
    timed.seconds = 0.0
    for _ in range(STEPS):
        guard.step(workload.batch)
    return 1e6 * timed.seconds / STEPS


class TimedMonitor(StepMonitor):
    """Times all calls of a Monitor's observer.

    Attributes:
        seconds: their CPU time.
    """

    def __init__(self, monitor: torchnan.Monitor) -> None:
        self._monitor = monitor
        self.seconds = 0.0

    @property
    def finds_instabilities(self) -> bool:
        return self._monitor.finds_instabilities

    def make_observer(self, training: TrainingState, failures: Failures) -> StepObserver:
        observer = self._monitor.make_observer(training, failures)
        for name in CALLS:
            setattr(observer, name, self._timed(getattr(observer, name)))
        return observer

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return timed
