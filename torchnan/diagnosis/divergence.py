"""§4: silent divergence. The loss is not spiking, not NaN, just slowly going up."""

from __future__ import annotations

import dataclasses

import numpy as np

from torchnan.diagnosis.extreme_value import OUTLIER_MARGIN
from torchnan.diagnosis.run import Run
from torchnan.diagnosis.series import Numbers, Series
from torchnan.diagnosis.thresholds import Thresholds

BLOCKS = 10  # parts of the window that the loss must rise over
MAX_BLOCKS = 400  # of a long run the last ones, and once more the whole in coarser ones


@dataclasses.dataclass(frozen=True)
class Rise:
    """The loss has gone up, and has not come back.

    Attributes:
        first: step at which it begins; ``last``: of the run.
        low, high: level at the begin and at the end.
        noise: of the loss about its level, per step, or of the level itself if that wanders more.
        steady: Kendall's tau of level and time, from begin to end: 1 is monotonic.
        chance: that it is so without a trend.
        earlier: the largest rise before it, which has gone by.
    """

    first: int
    last: int
    low: float
    high: float
    noise: float
    steady: float
    chance: float
    earlier: float

    @property
    def sigmas(self) -> float:
        """The rise in units of noise."""
        return (self.high - self.low) / self.noise

    @property
    def exceeds_earlier_rises(self) -> bool:
        """Whether the run has not gone up so before."""
        return self.high - self.low > OUTLIER_MARGIN * self.earlier


def rise(loss: Series, thresholds: Thresholds) -> Rise | None:
    """The rise that the run ends with, if its level goes up for as many steps as asked for at all."""
    window = max(loss.to_rows(thresholds.divergence_steps), thresholds.least_rows)
    block = max(2, window // BLOCKS)
    found = _rise(loss, block, window)
    coarse = -(-len(loss) // MAX_BLOCKS)
    if coarse > block:
        slow = _rise(loss, coarse, window)
        found = max(filter(None, (found, slow)), key=lambda rise: rise.sigmas, default=None)
    return found


def _rise(loss: Series, block: int, window: int) -> Rise | None:
    """Medians of blocks: a spike does not move them."""
    count = min(len(loss) // block, MAX_BLOCKS)
    if count < BLOCKS + 2:
        return None
    values = loss.values[len(loss) - count * block :].reshape(count, block)
    level = np.median(values, axis=1)
    start = int(np.argmin(np.convolve(level, np.ones(3) / 3, "valid"))) + 1
    if (count - start) * block < window - 2 * block:
        return None
    from scipy.optimize import isotonic_regression
    from scipy.stats import kendalltau, median_abs_deviation

    down = isotonic_regression(level[: start + 1], increasing=False).x
    up = isotonic_regression(level[start:]).x
    wander = median_abs_deviation(level - np.concatenate([down[:-1], up]), scale="normal")
    within = median_abs_deviation(values - level[:, None], axis=None, scale="normal")
    noise = max(float(wander), float(within), 1e-9 * abs(float(level[start])), float(np.finfo(float).tiny))
    tau = kendalltau(np.arange(count - start), level[start:])
    low, high = float(np.median(level[max(0, start - 1) : start + 2])), float(np.median(level[-3:]))
    at_low = np.flatnonzero(level[start:] <= low + 2 * wander)  # a rise that gets faster has its corner late
    begin = start + min(_hinge(level[start:]), int(at_low.max(initial=0)))
    first = int(loss.step[len(loss) - (count - begin) * block])
    earlier = float((level[:start] - np.minimum.accumulate(level[:start])).max(initial=0.0))
    return Rise(first, int(loss.step[-1]), low, high, noise, float(tau.statistic), float(tau.pvalue), earlier)


def _hinge(level: Numbers) -> int:
    """Where a level that is flat at first begins to rise: the corner of the best line with one."""
    x = np.arange(len(level), dtype=float)
    errors = []
    for corner in range(max(1, len(level) - 3)):
        slope = np.maximum(x - corner, 0)
        fitted = np.polynomial.polynomial.polyfit(slope, level, 1)
        errors.append(float(((level - fitted[0] - fitted[1] * slope) ** 2).sum()))
    return int(np.argmin(errors))


@dataclasses.dataclass(frozen=True)
class Change:
    """By which factor a value changed within the window, and between which steps; of which parameter group."""

    factor: float
    first: int
    last: int
    name: str = ""


def rate_change(run: Run, found: Rise, thresholds: Thresholds) -> Change | None:
    """Of the learning rate from where the rise begins, over the window."""
    rate = Series.from_run(run, "lr")
    begin = rate.row_at(found.first)
    end = min(rate.row_at(found.first + thresholds.divergence_steps), len(rate) - 1)
    if begin >= end or rate.values[begin] <= 0:
        return None
    return Change(float(rate.values[end] / rate.values[begin]), int(rate.step[begin]), int(rate.step[end]))


def weight_change(run: Run, found: Rise, thresholds: Thresholds) -> Change | None:
    """The largest of any parameter group within a window that the rise has at least half of: norms double in the first
    steps of many a training."""
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
    """Whether the gradient norm goes up with the loss: by which factor, and the chance of it without a trend."""

    factor: float
    chance: float


def gradient_trend(run: Run, found: Rise, thresholds: Thresholds) -> Trend | None:
    """Of medians of blocks, from where the rise begins."""
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
