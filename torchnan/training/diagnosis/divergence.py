"""Measures slow rises of the loss, and what else changed during them."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from torchnan.training.diagnosis.arrays import FloatArray
from torchnan.training.diagnosis.extreme_value import OUTLIER_MARGIN
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.series import Series
from torchnan.training.diagnosis.thresholds import Thresholds

BLOCKS = 10  # per window
MAX_BLOCKS = 400  # the last ones of a long run; the whole run is tested in coarser blocks


@dataclasses.dataclass(frozen=True)
class Rise:
    """A rise of the loss that lasts to the end of the run. Each number is computed when it is asked for: a healthy run
    needs the first of them alone.

    Attributes:
        loss: the whole series.
        values: its last rows, in blocks.
        level: median of each block, which spikes do not affect.
        start: number of the block from which the level rises.
    """

    loss: Series
    values: FloatArray
    level: FloatArray
    start: int

    @functools.cached_property
    def tau(self) -> float:
        """Kendall's tau of level and time, from beginning to end: 1 is monotonic; NaN for a constant level."""
        level = self.level[self.start :]
        after = np.sign(np.subtract.outer(level, level))[np.tril_indices(len(level), -1)]  # each pair, the later first
        untied = np.count_nonzero(after)
        return float(after.sum() / np.sqrt(len(after)) / np.sqrt(untied)) if untied else np.nan

    @functools.cached_property
    def p_value(self) -> float:
        """Probability of such a tau without a trend."""
        from scipy.stats import kendalltau

        return float(kendalltau(np.arange(len(self.level) - self.start), self.level[self.start :]).pvalue)

    @functools.cached_property
    def low(self) -> float:
        """Level at the beginning."""
        return float(np.median(self.level[max(0, self.start - 1) : self.start + 2]))

    @functools.cached_property
    def high(self) -> float:
        """Level at the end."""
        return float(np.median(self.level[-3:]))

    @functools.cached_property
    def wander(self) -> float:
        """Deviation of the level from one that falls to the beginning and rises from there."""
        from scipy.optimize import isotonic_regression
        from scipy.stats import median_abs_deviation

        down = isotonic_regression(self.level[: self.start + 1], increasing=False).x
        up = isotonic_regression(self.level[self.start :]).x
        return float(median_abs_deviation(self.level - np.concatenate([down[:-1], up]), scale="normal"))

    @functools.cached_property
    def noise(self) -> float:
        """Deviation of the loss from its level, per step, or of the level itself if that varies more."""
        from scipy.stats import median_abs_deviation

        within = median_abs_deviation(self.values - self.level[:, None], axis=None, scale="normal")
        least = 1e-9 * abs(float(self.level[self.start])), float(np.finfo(float).tiny)
        return max(self.wander, float(within), *least)

    @functools.cached_property
    def first(self) -> int:
        """Step at which it begins."""
        level = self.level[self.start :]
        at_low = np.flatnonzero(level <= self.low + 2 * self.wander)  # a rise that gets faster has its corner late
        begin = self.start + min(_hinge(level), int(at_low.max(initial=0)))
        return int(self.loss.step[len(self.loss) - self.values[begin:].size])

    @property
    def last(self) -> int:
        """The last step of the run."""
        return int(self.loss.step[-1])

    @functools.cached_property
    def largest_earlier(self) -> float:
        """The largest rise before this one."""
        before = self.level[: self.start]
        return float((before - np.minimum.accumulate(before)).max(initial=0.0))

    @property
    def sigmas(self) -> float:
        """The rise in units of noise."""
        return (self.high - self.low) / self.noise

    @property
    def exceeds_earlier_rises(self) -> bool:
        """Whether it is clearly larger than any rise before."""
        return self.high - self.low > OUTLIER_MARGIN * self.largest_earlier


def rise(loss: Series, thresholds: Thresholds) -> Rise | None:
    """Returns the rise that the run ends with, if the level rises over ``divergence_steps``."""
    window = max(loss.to_rows(thresholds.divergence_steps), thresholds.least_rows)
    block = max(2, window // BLOCKS)
    found = _rise(loss, block, window)
    coarse = -(-len(loss) // MAX_BLOCKS)
    if coarse > block:
        slow = _rise(loss, coarse, window)
        found = max(filter(None, (found, slow)), key=lambda rise: rise.sigmas, default=None)
    return found


def _rise(loss: Series, block: int, window: int) -> Rise | None:
    """Finds a rise in the medians of blocks."""
    count = min(len(loss) // block, MAX_BLOCKS)
    if count < BLOCKS + 2:
        return None
    values = loss.values[len(loss) - count * block :].reshape(count, block)
    level = np.median(values, axis=1)
    start = int(np.argmin(np.convolve(level, np.ones(3) / 3, "valid"))) + 1
    if (count - start) * block < window - 2 * block:
        return None
    return Rise(loss, values, level, start)


def _hinge(level: FloatArray) -> int:
    """Returns where a level that is flat at first begins to rise: the corner of the best line with one corner."""
    corners = np.arange(max(1, len(level) - 3))
    slopes = np.maximum(np.arange(len(level), dtype=float) - corners[:, None], 0)
    slopes -= slopes.mean(axis=1, keepdims=True)
    explained = (slopes @ (level - level.mean())) ** 2 / (slopes * slopes).sum(axis=1)  # of the sum of squares
    return int(np.argmax(explained))


@dataclasses.dataclass(frozen=True)
class Change:
    """Factor by which a value changed between two steps, and the parameter group that it belongs to."""

    factor: float
    first: int
    last: int
    name: str = ""


def rate_change(run: Run, found: Rise, thresholds: Thresholds) -> Change | None:
    """Returns the change of the learning rate over ``divergence_steps`` from the beginning of the rise."""
    rate = Series.from_run(run, "lr")
    begin = rate.row_at(found.first)
    end = min(rate.row_at(found.first + thresholds.divergence_steps), len(rate) - 1)
    if begin >= end or rate.values[begin] <= 0:
        return None
    return Change(float(rate.values[end] / rate.values[begin]), int(rate.step[begin]), int(rate.step[end]))


def weight_change(run: Run, found: Rise, thresholds: Thresholds) -> Change | None:
    """Returns the largest change of a group's weight norm over ``divergence_steps``.

    At least half of them must lie in the rise, because norms often double in the first steps of a training.
    """
    changes = []
    for name, column in run.groups.get("weight_norm", {}).items():
        rows = column.given & (column.values > 0) & np.isfinite(column.values)
        rows &= run.step >= found.first - thresholds.divergence_steps // 2
        step, logs = run.step[rows], np.log(column.values[rows])
        if len(step) < 2:
            continue
        later = np.minimum(np.searchsorted(step, step + thresholds.divergence_steps, side="right") - 1, len(step) - 1)
        i = int(np.argmax(np.abs(logs[later] - logs)))
        changes.append(Change(float(np.exp(logs[later[i]] - logs[i])), int(step[i]), int(step[later[i]]), name))
    return max(changes, key=lambda change: abs(np.log(change.factor)), default=None)


@dataclasses.dataclass(frozen=True)
class Trend:
    """Factor by which the gradient norm grew with the loss, and the probability of that without a trend."""

    factor: float
    p_value: float


def gradient_trend(run: Run, found: Rise, thresholds: Thresholds) -> Trend | None:
    """Returns the trend of the gradient norm, by medians of blocks, from the beginning of the rise."""
    norm = Series.from_run(run, "grad_norm")
    values = norm.values[norm.row_at(found.first) :]
    block = max(2, norm.to_rows(thresholds.divergence_steps) // BLOCKS, len(values) // MAX_BLOCKS)
    count = len(values) // block
    if count < BLOCKS // 2:
        return None
    from scipy.stats import kendalltau

    level = np.median(values[len(values) - count * block :].reshape(count, block), axis=1)
    tau = kendalltau(np.arange(count), level, alternative="greater")
    start = float(np.median(level[:3]))
    return Trend(float(np.median(level[-3:])) / start if start > 0 else np.inf, float(tau.pvalue))
