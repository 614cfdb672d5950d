"""Times steps in turn, and computes ratios with their precision."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import clock
from benchmarks.workloads import Workload

Times = dict[str, list[float]]  # per step of each row, round by round


class Ratio(NamedTuple):
    """How a row compares with its base.

    Attributes:
        median: of the ratios taken within a round.
        low, high: an interval that holds the true median in 95 % of cases, from order statistics alone.
        of_minima: the shortest time of the row / the shortest of its base.
    """

    median: float
    low: float
    high: float
    of_minima: float

    @property
    def is_within_a_percent(self) -> bool:
        return self.high - self.low <= 0.02


def time_step(workload: Workload) -> float:
    """Returns the seconds of one step."""
    start = clock.seconds()
    workload.step()
    return clock.seconds() - start


def time_once(workload: Workload, read_clock: Callable[[], float] = clock.seconds) -> float:
    """Time per step, after one step that is not counted, because a mode may have one-time work."""
    workload.step()
    start = read_clock()
    for _ in range(workload.repeat):
        workload.step()
    return (read_clock() - start) / workload.repeat


def measure(timers: dict[str, Callable[[], float]], rounds: int) -> Times:
    """Runs every timer once a round, in random order."""
    times: Times = {name: [] for name in timers}
    for _ in range(rounds):
        add_round(times, timers)
    return times


def measure_until(
    timers: dict[str, Callable[[], float]], is_precise: Callable[[Times], bool], seconds: float, fewest: int = 6
) -> Times:
    """Adds rounds until the ratios are precise, or the time is over; there are at least ``fewest``."""
    end = time.perf_counter() + seconds
    times = measure(timers, fewest)
    while time.perf_counter() < end and not is_precise(times):
        add_round(times, timers)
    return times


def add_round(times: Times, timers: dict[str, Callable[[], float]]) -> None:
    for name in random.sample(list(timers), len(timers)):
        times[name].append(timers[name]())


def ratio(times: list[float], base: list[float]) -> Ratio:
    """Compares two rows of the same rounds; six or more."""
    ratios = sorted(t / b for t, b in zip(times, base, strict=True))
    count = len(ratios)
    outside = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))  # the binomial's, by its normal approximation
    low, high = ratios[outside], ratios[count - 1 - outside]
    return Ratio(statistics.median(ratios), low, high, min(times) / min(base))
