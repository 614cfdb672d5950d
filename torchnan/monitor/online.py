"""Judges a run while it goes on: each verdict is told once, when it becomes true."""

from __future__ import annotations

import collections
import dataclasses
import math
import sys

from torchnan.diagnosis import Diagnosis, Forecast, Thresholds, Verdict, diagnose
from torchnan.monitor.row import Row
from torchnan.monitor.window import Window

MAX_REPORTED = 200
MIN_VALUES = 10  # rows that a mean is taken of
RESUM_INTERVAL = 256  # numbers from one exact sum to the next


@dataclasses.dataclass
class NewVerdicts:
    """What has become true with a row."""

    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    forecasts: list[Forecast] = dataclasses.field(default_factory=list)


class RollingStats:
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
        if self._added % RESUM_INTERVAL == 0:  # of what rounding has left
            self._sum, self._squares = math.fsum(self._numbers), math.fsum(n * n for n in self._numbers)

    @property
    def mean(self) -> float:
        """The largest number while there are too few: nothing is above it but infinity."""
        return self._sum / len(self._numbers) if len(self._numbers) >= MIN_VALUES else sys.float_info.max

    @property
    def deviation(self) -> float:
        """0 while there are too few."""
        count = len(self._numbers)
        return math.sqrt(max(0.0, self._squares / count - self.mean * self.mean)) if count >= MIN_VALUES else 0.0


class OnlineDiagnosis:
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
        self._rows_since_diagnosis = 0
        self._losses, self._grad_norms = RollingStats(thresholds.spike_window), RollingStats(thresholds.spike_window)
        self._lr = 0.0
        self._triggers: frozenset[str] = frozenset()
        self._reported: list[tuple[str, int, int]] = []  # kind, first and last step
        self._reported_forecasts: set[tuple[str, str]] = set()

    def add(self, row: Row) -> NewVerdicts:
        """One more row, and what has become true with it."""
        self._rewind_to(row.step)
        self.window.add(row)
        self._rows_since_diagnosis += 1
        triggers = self._find_triggers(row)
        is_new, self._triggers = bool(triggers - self._triggers), triggers
        return self.diagnose() if is_new or self._rows_since_diagnosis >= self._every else NewVerdicts()

    def diagnose(self) -> NewVerdicts:
        """What has become true since it was last asked."""
        self._rows_since_diagnosis = 0
        found = diagnose(self.window.run(), self._thresholds)
        return NewVerdicts(
            [v for v in found.verdicts if v.kind != "healthy" and self._is_new(v)], self._new_forecasts(found)
        )

    def _find_triggers(self, row: Row) -> frozenset[str]:
        loss, norm, limits = row.loss, row.grad_norm, self._thresholds
        mean, deviation = self._losses.mean, self._losses.deviation
        lr = max(row.lr, default=0.0) if row.lr else self._lr
        triggers = {
            "loss": _exceeds(loss, mean + limits.spike_sigma * deviation),
            "grad_norm": _exceeds(norm, limits.grad_factor * self._grad_norms.mean),
            "lr": not 1 / limits.lr_jump <= (lr / self._lr if self._lr > 0 else 1.0) <= limits.lr_jump,
            "loss_scale": row.loss_scale is not None and row.loss_scale < limits.scale_floor,
            "skipped": bool(row.skipped),
        }
        self._losses.add(loss)
        self._grad_norms.add(norm)
        self._lr = lr
        return frozenset(name for name, holds in triggers.items() if holds)

    def _is_new(self, verdict: Verdict) -> bool:
        """Not one that was told, of steps that this one begins in or goes on from."""
        first, last = verdict.first_step, verdict.last_step
        for i, (kind, from_, to) in enumerate(self._reported):
            if kind == verdict.kind and first <= to + 1 and last >= from_:
                self._reported[i] = (kind, min(first, from_), max(last, to))
                return False
        self._reported = [*self._reported, (verdict.kind, first, last)][-MAX_REPORTED:]
        return True

    def _new_forecasts(self, found: Diagnosis) -> list[Forecast]:
        new = [f for f in found.forecasts if (f.module, f.dtype) not in self._reported_forecasts]
        self._reported_forecasts |= {(f.module, f.dtype) for f in new}
        return new

    def _rewind_to(self, step: int) -> None:
        self._reported = [(kind, first, min(last, step - 1)) for kind, first, last in self._reported if first < step]


def _exceeds(value: float | None, limit: float) -> bool:
    """What is not finite exceeds all."""
    return value is not None and (not math.isfinite(value) or value > limit)
