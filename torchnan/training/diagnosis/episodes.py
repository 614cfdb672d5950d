"""Finds sudden rises of the loss: candidates by the 3-sigma rule, kept if they exceed chance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from torchnan.training.diagnosis.arrays import BoolArray, FloatArray, IntArray
from torchnan.training.diagnosis.extreme_value import OUTLIER_MARGIN, max_quantile, outlier_threshold
from torchnan.training.diagnosis.series import Prediction, Series, forward_mean, predict
from torchnan.training.diagnosis.thresholds import Thresholds

MAX_GAP = 2  # rows between two of the same episode
CAUSE_STEPS = 10  # maximum distance of a cause before its effect
MAX_PASSES = 5  # each excludes the episodes found so far from the windows, which may reveal others


@dataclasses.dataclass(frozen=True)
class Episode:
    """A stretch of losses above the mean before it.

    Attributes:
        step: first step; ``last``: last step before the loss is back, or of the run; ``peak``: step of the largest
            loss.
        loss: the largest loss; ``mean``, ``sigma``: of the window before it.
        surprise: of the peak, in units of noise; ``level``: the surprise that noise alone may reach.
        shift: mean loss of the steps after its start minus the mean before, in units of noise.
        state: ``"recovered"``, ``"persistent"``, or ``"open"``: the log ends too early to know.
        is_single: whether only its first row is high.
    """

    step: int
    last: int
    peak: int
    loss: float
    mean: float
    sigma: float
    surprise: float
    level: float
    shift: float
    state: Literal["recovered", "persistent", "open"]
    is_single: bool


def episodes(
    loss: Series, unusual: BoolArray, signal_steps: Callable[[], IntArray], thresholds: Thresholds
) -> list[Episode]:
    """Returns the episodes that exceed chance, in order.

    Args:
        loss: finite values.
        unusual: rows that do not represent the level, such as those of repeated batches.
        signal_steps: returns the steps of other signals, if they are needed; near them a lower surprise is sufficient.
        thresholds: limits of the decision tree.
    """
    found: list[Episode] = []
    for _ in range(MAX_PASSES):
        unusual = unusual.copy()
        candidates = _pass(loss, ~unusual, signal_steps, thresholds)
        new = [e for e in candidates if not any(f.step <= e.step <= f.last for f in found)]
        found += new
        for episode in new:
            unusual[loss.row_at(episode.step) : loss.row_at(episode.last + 1)] |= episode.state == "recovered"
        if not any(episode.state == "recovered" for episode in new):
            break
    return sorted(found, key=lambda episode: episode.step)


def _pass(
    loss: Series, usual: BoolArray, signal_steps: Callable[[], IntArray], thresholds: Thresholds
) -> list[Episode]:
    prediction = predict(loss.values, loss.window_rows(thresholds), usual)
    with np.errstate(invalid="ignore"):
        high = loss.values > prediction.mean + thresholds.spike_sigma * prediction.sigma
    rows = np.flatnonzero(high)
    if not len(rows):
        return []
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > MAX_GAP) + 1)
    starts, peaks = _starts_and_peaks(rows, groups, prediction.surprise)
    known = np.isfinite(prediction.surprise)
    ordinary = prediction.surprise[known & usual & ~high]
    levels = _levels(loss, ordinary, starts, peaks, int(known.sum()), signal_steps(), thresholds)
    shifts = _shifts(loss, prediction, thresholds)
    persistent = _is_persistent(shifts, starts, loss, thresholds)
    chosen = np.flatnonzero((peaks > levels) | persistent)
    return _without_overlap([_episode(loss, prediction, groups[i], levels[i], shifts, thresholds) for i in chosen])


def _starts_and_peaks(rows: IntArray, groups: list[IntArray], surprise: FloatArray) -> tuple[IntArray, FloatArray]:
    """Returns the first row and the largest surprise of each group of rows."""
    lengths = np.array([len(group) for group in groups])
    begins = np.cumsum(lengths) - lengths
    return rows[begins], np.maximum.reduceat(surprise[rows], begins)


def _levels(
    loss: Series,
    ordinary: FloatArray,
    starts: IntArray,
    peaks: FloatArray,
    tested: int,
    signal_steps: IntArray,
    thresholds: Thresholds,
) -> FloatArray:
    """Returns the surprise that noise alone may reach; lower near ``signal_steps``, because fewer rows are tested
    there.
    """
    least = OUTLIER_MARGIN * thresholds.spike_sigma
    level = max(outlier_threshold(peaks, ordinary, tested, thresholds.false_alarm), least)
    levels = np.full(len(starts), level)
    begin = np.searchsorted(signal_steps, loss.step[starts] - CAUSE_STEPS)
    near = begin < np.searchsorted(signal_steps, loss.step[starts] + CAUSE_STEPS, side="right")
    if near.any():
        rows_near = min(tested, len(signal_steps) * loss.to_rows(2 * CAUSE_STEPS + 1))
        levels[near] = np.minimum(levels[near], max_quantile(ordinary, rows_near, thresholds.false_alarm))
    return levels


def _shifts(loss: Series, prediction: Prediction, thresholds: Thresholds) -> FloatArray:
    with np.errstate(all="ignore"):
        return (forward_mean(loss.values, loss.to_rows(thresholds.recovery_steps)) - prediction.mean) / prediction.noise


def _is_persistent(shifts: FloatArray, starts: IntArray, loss: Series, thresholds: Thresholds) -> BoolArray:
    """Returns whether the level after each start is shifted as nowhere else in the run.

    Noise that wanders has more than one such shift, so at most one start is marked.
    """
    marks = np.zeros(len(starts), dtype=bool)
    with np.errstate(invalid="ignore"):
        best = int(np.argmax(np.nan_to_num(shifts[starts], nan=-np.inf, posinf=0)))
    row, rows = starts[best], loss.to_rows(thresholds.recovery_steps)
    around = np.ones(len(shifts), dtype=bool)
    around[max(0, row - rows) : row + loss.window_rows(thresholds)] = False
    others = shifts[around & np.isfinite(shifts)]
    if len(others) < rows:
        return marks
    usual = max(float(others.max()), thresholds.spike_sigma)
    marks[best] = shifts[row] > OUTLIER_MARGIN * usual
    return marks


def _episode(
    loss: Series, prediction: Prediction, rows: IntArray, level: float, shifts: FloatArray, thresholds: Thresholds
) -> Episode:
    start, span = int(rows[0]), loss.to_rows(thresholds.recovery_steps)
    mean, sigma = float(prediction.mean[start]), float(prediction.sigma[start])
    back = _comes_back(loss, start, span, mean + thresholds.recovery_sigma * sigma)
    peak = start + int(np.argmax(loss.values[start : min(back or len(loss), start + span) + 1]))
    if back is not None:
        state, last = "recovered", int(loss.step[back - 1])
    else:
        state, last = ("persistent" if len(loss) - start > span else "open"), int(loss.step[-1])
    return Episode(
        step=int(loss.step[start]),
        last=last,
        peak=int(loss.step[peak]),
        loss=float(loss.values[peak]),
        mean=mean,
        sigma=sigma,
        surprise=float(prediction.surprise[rows].max()),
        level=float(level),
        shift=float(shifts[start]),
        state=state,  # type: ignore[arg-type]
        is_single=back is not None and back == start + 1,
    )


def _comes_back(loss: Series, start: int, span: int, bound: float) -> int | None:
    """Returns the first row from which the mean of a few rows is below the bound; a single row may be below it by
    chance."""
    few = min(10, max(1, span // 5))
    means = forward_mean(loss.values[start + 1 : start + span + few], few)[:span]
    with np.errstate(invalid="ignore"):
        below = np.flatnonzero(means <= bound)
    return start + 1 + int(below[0]) if len(below) else None


def _without_overlap(found: list[Episode]) -> list[Episode]:
    kept: list[Episode] = []
    for episode in found:
        if not kept or episode.step > kept[-1].last or (kept[-1].state != "recovered" and _higher(episode, kept[-1])):
            kept.append(episode)
    return kept


def _higher(episode: Episode, earlier: Episode) -> bool:
    """Returns whether an episode stands on top of an earlier one that has not come back."""
    return episode.mean > earlier.loss
