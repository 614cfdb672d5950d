"""Diagnoses a run while it goes on and reports each verdict once, when it becomes true."""

from __future__ import annotations

import collections
import dataclasses
import math
import sys

from torchnan.training.diagnosis import Diagnosis, Forecast, Thresholds, Verdict
from torchnan.training.diagnosis.decision_tree import problems
from torchnan.training.monitor.recent_rows import RecentRows
from torchnan.training.monitor.row import Row

MAX_REPORTED = 200
MIN_VALUES = 10  # fewer have no mean
RESUM_INTERVAL = 256  # additions between two exact sums


@dataclasses.dataclass
class NewVerdicts:
    """Verdicts and forecasts that became true with a row."""

    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    forecasts: list[Forecast] = dataclasses.field(default_factory=list)


class RollingStats:
    """Mean and standard deviation of the last finite numbers.

    Args:
        size: number of values kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._numbers: collections.deque[float] = collections.deque()
        self._added = 0
        self._sum = self._squares = 0.0

    def add(self, number: float | None) -> None:
        """Adds a number and drops the oldest; ignores non-finite ones."""
        if number is None or not math.isfinite(number):
            return
        dropped = self._numbers.popleft() if len(self._numbers) == self._size else 0.0
        self._numbers.append(number)
        self._added += 1
        self._sum += number - dropped
        self._squares += number * number - dropped * dropped
        if self._added % RESUM_INTERVAL == 0:  # removes accumulated rounding errors
            self._sum, self._squares = math.fsum(self._numbers), math.fsum(n * n for n in self._numbers)

    @property
    def mean(self) -> float:
        """The mean; the largest float while there are too few numbers, so that only infinity exceeds it."""
        return self._sum / len(self._numbers) if len(self._numbers) >= MIN_VALUES else sys.float_info.max

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 while there are too few numbers."""
        if len(self._numbers) < MIN_VALUES:
            return 0.0
        mean = self.mean
        return math.sqrt(max(0.0, self._squares / len(self._numbers) - mean * mean))


class OnlineDiagnosis:
    """Diagnoses the last rows of a run.

    A cheap test of each row decides whether to walk the decision tree now; otherwise it is walked every few rows.

    Args:
        window: the last rows.
        thresholds: limits of the decision tree.
        every: maximum number of rows between two walks.
    """

    def __init__(self, window: RecentRows, thresholds: Thresholds, every: int) -> None:
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
        """Adds a row, and returns what became true with it, or earlier, since the last walk."""
        self._rewind_to(row.step)
        self.window.add(row)
        self._rows_since_diagnosis += 1
        triggers = self._find_triggers(row)
        is_new, self._triggers = bool(triggers - self._triggers), triggers
        return self.diagnose() if is_new or self._rows_since_diagnosis >= self._every else NewVerdicts()

    @property
    def is_behind(self) -> bool:
        """Whether there are rows that no walk has seen."""
        return self._rows_since_diagnosis > 0

    def forget_rows(self) -> None:
        """Begins to count anew the rows until the next walk."""
        self._rows_since_diagnosis = 0

    def diagnose(self) -> NewVerdicts:
        """Walks the decision tree, and returns what became true since the last walk."""
        self.forget_rows()
        found = problems(self.window.run(), self._thresholds)
        return NewVerdicts([v for v in found.verdicts if self._is_new(v)], self._new_forecasts(found))

    def _find_triggers(self, row: Row) -> frozenset[str]:
        loss, norm, limits = row.loss, row.grad_norm, self._thresholds
        mean, deviation = self._losses.mean, self._losses.deviation
        lr = max(row.lr, default=0.0) if row.lr else self._lr
        triggers = []
        if _exceeds(loss, mean + limits.spike_sigma * deviation):
            triggers.append("loss")
        if _exceeds(norm, limits.grad_factor * self._grad_norms.mean):
            triggers.append("grad_norm")
        if not 1 / limits.lr_jump <= (lr / self._lr if self._lr > 0 else 1.0) <= limits.lr_jump:
            triggers.append("lr")
        if row.loss_scale is not None and row.loss_scale < limits.scale_floor:
            triggers.append("loss_scale")
        if row.skipped:
            triggers.append("skipped")
        if row.headroom:
            triggers.append("headroom")
        self._losses.add(loss)
        self._grad_norms.add(norm)
        self._lr = lr
        return frozenset(triggers)

    def _is_new(self, verdict: Verdict) -> bool:
        """Returns whether no verdict of this kind was reported for steps that this one overlaps or continues."""
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
        """Forgets reports from a step on, because the run went back to it."""
        self._reported = [(kind, first, min(last, step - 1)) for kind, first, last in self._reported if first < step]


def _exceeds(value: float | None, limit: float) -> bool:
    """Returns whether a value is above the limit; a non-finite one always is."""
    return value is not None and (not math.isfinite(value) or value > limit)
