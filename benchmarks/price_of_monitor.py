"""What a Monitor takes of a guarded step. Too small a share to be seen in a ratio of whole steps: its own calls
are timed, in the CPU time of their thread, with a full window and all that comes only every few steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from benchmarks import modes
from benchmarks.workloads import Workload
from torchnan.monitor.row import Row

STEPS = 40  # a multiple of what the Monitor counts by


def microseconds(workload: Workload) -> float:
    """Of one step, on average."""
    monitor = modes.monitor()
    guard = modes.guard_of(workload, monitor=monitor)
    first = guard.step(workload.batch)
    loss = 0.0 if first.loss is None else first.loss.item()
    for i in range(2, 1001):
        factor = 1.0 + 0.05 * math.sin(7.0 * i)
        row = Row(i, loss=loss * factor, grad_norm=first.norm * factor, lr=[1e-4], batch_digest=f"{i:016x}")
        monitor.record.diagnose(row)
    guard.step_number = 1000
    spent = [0.0]
    for name in ("begin", "keep", "without_graph", "look", "end"):
        setattr(guard.monitored, name, _timed(getattr(guard.monitored, name), spent))
    guard._forward_backward.without_graph = guard.monitored.without_graph
    for _ in range(STEPS):
        guard.step(workload.batch)
    return 1e6 * spent[0] / STEPS


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[0] += time.thread_time() - start

    return timed
