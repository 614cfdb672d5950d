"""Where the loss goes up at once: candidates by the 3-sigma rule, and which of them are no chance."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchnan.diagnosis.extreme_value import OUTLIER_MARGIN, max_quantile, outlier_threshold
from torchnan.diagnosis.series import Marks, Numbers, Prediction, Series, forward_mean, predict
from torchnan.diagnosis.thresholds import Thresholds

MAX_GAP = 2  # rows from one above the threshold to the next, in an episode
CAUSE_STEPS = 10  # steps that what causes a spike may come before it
MAX_PASSES = 5  # found episodes no longer count to the windows, which may show others


@dataclasses.dataclass(frozen=True)
class Episode:
    """The loss above what it was.

    Attributes:
        step: its first; ``last``: the last before it has come back, or of the run; ``peak``: of the largest loss.
        loss: the largest; ``mean``, ``sigma``: of the window before it.
        surprise: of the peak, in units of noise; ``level``: what noise alone may reach.
        shift: by how many units of noise the mean loss of the steps after it is above the mean before.
        state: ``"recovered"``, ``"persistent"``, or ``"open"``: the log ends too early to know.
        single: whether the rows after the first are normal.
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
    single: bool


def episodes(loss: Series, unusual: Marks, places: NDArray[np.int64], thresholds: Thresholds) -> list[Episode]:
    """Those that are no chance.

    Args:
        loss: finite values.
        unusual: rows that say nothing of the level, such as those of repeated batches.
        places: steps at which something else has happened; near them less is needed.
        thresholds: what counts as what.
    """
    found: list[Episode] = []
    for _ in range(MAX_PASSES):
        unusual = unusual.copy()
        new = [
            e for e in _pass(loss, ~unusual, places, thresholds) if not any(f.step <= e.step <= f.last for f in found)
        ]
        found += new
        for episode in new:
            unusual[loss.row_at(episode.step) : loss.row_at(episode.last + 1)] |= episode.state == "recovered"
        if not any(episode.state == "recovered" for episode in new):
            break
    return sorted(found, key=lambda episode: episode.step)


def _pass(loss: Series, usual: Marks, places: NDArray[np.int64], thresholds: Thresholds) -> list[Episode]:
    seen = predict(loss.values, loss.window_rows(thresholds), usual)
    with np.errstate(invalid="ignore"):
        high = loss.values > seen.mean + thresholds.spike_sigma * seen.sigma
    rows = np.flatnonzero(high)
    if not len(rows):
        return []
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > MAX_GAP) + 1)
    starts, peaks = _starts_and_peaks(rows, groups, seen.surprise)
    told = np.isfinite(seen.surprise)
    levels = _levels(loss, seen.surprise[told & usual & ~high], starts, peaks, int(told.sum()), places, thresholds)
    shifts = _shifts(loss, seen, thresholds)
    persistent = _is_persistent(shifts, starts, loss, thresholds)
    chosen = np.flatnonzero((peaks > levels) | persistent)
    return _without_overlap([_episode(loss, seen, groups[i], levels[i], shifts, thresholds) for i in chosen])


def _starts_and_peaks(
    rows: NDArray[np.int64], groups: list[NDArray[np.int64]], surprise: Numbers
) -> tuple[NDArray[np.int64], Numbers]:
    """First row and largest surprise of each group."""
    lengths = np.array([len(group) for group in groups])
    begins = np.cumsum(lengths) - lengths
    return rows[begins], np.maximum.reduceat(surprise[rows], begins)


def _levels(
    loss: Series,
    ordinary: Numbers,
    starts: NDArray[np.int64],
    peaks: Numbers,
    looked_at: int,
    places: NDArray[np.int64],
    thresholds: Thresholds,
) -> Numbers:
    """What noise alone may reach. Near a place only the rows near places have been looked at."""
    least = OUTLIER_MARGIN * thresholds.spike_sigma
    level = max(outlier_threshold(peaks, ordinary, looked_at, thresholds.false_alarm), least)
    levels = np.full(len(starts), level)
    begin = np.searchsorted(places, loss.step[starts] - CAUSE_STEPS)
    near = begin < np.searchsorted(places, loss.step[starts] + CAUSE_STEPS, side="right")
    if near.any():
        rows_near = min(looked_at, len(places) * loss.to_rows(2 * CAUSE_STEPS + 1))
        levels[near] = np.minimum(levels[near], max_quantile(ordinary, rows_near, thresholds.false_alarm))
    return levels


def _shifts(loss: Series, seen: Prediction, thresholds: Thresholds) -> Numbers:
    with np.errstate(all="ignore"):
        return (forward_mean(loss.values, loss.to_rows(thresholds.recovery_steps)) - seen.mean) / seen.noise


def _is_persistent(shifts: Numbers, starts: NDArray[np.int64], loss: Series, thresholds: Thresholds) -> Marks:
    """Whether the level is up after it as nowhere else in the run: noise that wanders has more than one such place."""
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
    loss: Series, seen: Prediction, rows: NDArray[np.int64], level: float, shifts: Numbers, thresholds: Thresholds
) -> Episode:
    start, span = int(rows[0]), loss.to_rows(thresholds.recovery_steps)
    mean, sigma = float(seen.mean[start]), float(seen.sigma[start])
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
        surprise=float(seen.surprise[rows].max()),
        level=float(level),
        shift=float(shifts[start]),
        state=state,  # type: ignore[arg-type]
        single=back is not None and back == start + 1,
    )


def _comes_back(loss: Series, start: int, span: int, bound: float) -> int | None:
    """First row from which on a few are below the bound on average: one alone may be so by chance."""
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
    """A second one on top of a first that has not come back."""
    return episode.mean > earlier.loss
