"""Judges a run while it goes on: each verdict is told once, when it becomes true."""

from __future__ import annotations

import collections
import dataclasses
import math
import sys

from torchnan.diagnosis import Diagnosis, Forecast, Thresholds, Verdict, diagnose
from torchnan.monitor.row import Row
from torchnan.monitor.window import Window

MOST_TOLD = 200
FEWEST = 10  # rows that a mean is taken of
RENEWED = 256  # numbers from one exact sum to the next


@dataclasses.dataclass
class News:
    """What has become true with a row."""

    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    forecasts: list[Forecast] = dataclasses.field(default_factory=list)


class Rolling:
    """Mean and deviation of the last numbers that were finite. A number that it does not know yet is not above them.

    Args:
        most: numbers.
    """

    def __init__(self, most: int) -> None:
        self._numbers: collections.deque[float] = collections.deque(maxlen=most)
        self._added = 0
        self._sum = self._squares = 0.0

    def add(self, number: float | None) -> None:
        """One more; the oldest goes."""
        if number is None or not math.isfinite(number):
            return
        gone = self._numbers[0] if len(self._numbers) == self._numbers.maxlen else 0.0
        self._numbers.append(number)
        self._added += 1
        self._sum += number - gone
        self._squares += number * number - gone * gone
        if self._added % RENEWED == 0:  # of what rounding has left
            self._sum, self._squares = math.fsum(self._numbers), math.fsum(n * n for n in self._numbers)

    @property
    def mean(self) -> float:
        """The largest number while there are too few: nothing is above it but infinity."""
        return self._sum / len(self._numbers) if len(self._numbers) >= FEWEST else sys.float_info.max

    @property
    def deviation(self) -> float:
        """0 while there are too few."""
        count = len(self._numbers)
        return math.sqrt(max(0.0, self._squares / count - self.mean * self.mean)) if count >= FEWEST else 0.0


class Live:
    """A cheap look at each row says whether the whole tree is to be walked now; without a reason it is walked every few
    rows.

    Args:
        window: the last rows.
        thresholds: what counts as what.
        every: rows between two walks, at most.
    """

    def __init__(self, window: Window, thresholds: Thresholds, every: int) -> None:
        self.window = window
        self._thresholds = thresholds
        self._every = every
        self._since_walk = 0
        self._losses, self._norms = Rolling(thresholds.spike_window), Rolling(thresholds.spike_window)
        self._lr = 0.0
        self._reasons: frozenset[str] = frozenset()
        self._told: list[tuple[str, int, int]] = []  # kind, first and last step
        self._forecast: set[tuple[str, str]] = set()

    def add(self, row: Row) -> News:
        """One more row, and what has become true with it."""
        self._go_back(row.step)
        self.window.add(row)
        self._since_walk += 1
        reasons = self._reasons_to_walk(row)
        is_new, self._reasons = bool(reasons - self._reasons), reasons
        return self.walk() if is_new or self._since_walk >= self._every else News()

    def walk(self) -> News:
        """What has become true since it was last asked."""
        self._since_walk = 0
        found = diagnose(self.window.run(), self._thresholds)
        return News([v for v in found.verdicts if v.kind != "healthy" and self._is_news(v)], self._new_forecasts(found))

    def _reasons_to_walk(self, row: Row) -> frozenset[str]:
        loss, norm, limits = row.loss, row.grad_norm, self._thresholds
        mean, deviation = self._losses.mean, self._losses.deviation
        lr = max(row.lr, default=0.0) if row.lr else self._lr
        reasons = {
            "loss": _exceeds(loss, mean + limits.spike_sigma * deviation),
            "grad_norm": _exceeds(norm, limits.grad_factor * self._norms.mean),
            "lr": not 1 / limits.lr_jump <= (lr / self._lr if self._lr > 0 else 1.0) <= limits.lr_jump,
            "loss_scale": row.loss_scale is not None and row.loss_scale < limits.scale_floor,
            "skipped": bool(row.skipped),
        }
        self._losses.add(loss)
        self._norms.add(norm)
        self._lr = lr
        return frozenset(name for name, holds in reasons.items() if holds)

    def _is_news(self, verdict: Verdict) -> bool:
        """Not one that was told, of steps that this one begins in or goes on from."""
        first, last = verdict.first_step, verdict.last_step
        for i, (kind, from_, to) in enumerate(self._told):
            if kind == verdict.kind and first <= to + 1 and last >= from_:
                self._told[i] = (kind, min(first, from_), max(last, to))
                return False
        self._told = [*self._told, (verdict.kind, first, last)][-MOST_TOLD:]
        return True

    def _new_forecasts(self, found: Diagnosis) -> list[Forecast]:
        new = [f for f in found.forecasts if (f.module, f.dtype) not in self._forecast]
        self._forecast |= {(f.module, f.dtype) for f in new}
        return new

    def _go_back(self, step: int) -> None:
        self._told = [(kind, first, min(last, step - 1)) for kind, first, last in self._told if first < step]


def _exceeds(value: float | None, limit: float) -> bool:
    """What is not finite exceeds all."""
    return value is not None and (not math.isfinite(value) or value > limit)
