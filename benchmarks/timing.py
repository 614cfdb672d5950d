"""One timing."""

from __future__ import annotations

import time

from benchmarks.workloads import Workload


def time_once(workload: Workload) -> float:
    """Seconds per step, after one step that is not counted: whatever a mode does at its first is not its price."""
    workload.step()
    start = time.perf_counter()
    for _ in range(workload.repeat):
        workload.step()
    return (time.perf_counter() - start) / workload.repeat
