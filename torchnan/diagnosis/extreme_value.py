"""How high noise alone may rise: the tail of a run's own surprises, continued to where chance ends."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

SHARE = 0.1  # of the surprises, the largest ones, are the tail
LEAST = 10  # of them
# Few excesses say little about the shape of a tail: as if so many more had been seen, of a tail as of Student's t with
# seven degrees of freedom.
PRIOR_SHAPE, PRIOR_WEIGHT = 0.15, 30


def max_quantile(ordinary: Numbers, looked_at: int, chance: float, *, exactly: bool = True) -> float:
    """The surprise that noise exceeds only with this chance among as many rows as were looked at.

    Peaks over a threshold follow a generalised Pareto distribution whatever the noise is (Pickands, Balkema, de Haan).

    Args:
        ordinary: surprises of rows that are not under suspicion.
        looked_at: rows that could have been surprising.
        chance: 0 to 1, for all of them together.
        exactly: fit the shape of the tail; otherwise take an exponential one, which is cheap and never higher.
    """
    if len(ordinary) < 2 * LEAST:
        return math.inf
    count = max(LEAST, round(SHARE * len(ordinary)))
    tail = np.partition(ordinary, -count - 1)[-count - 1 :]
    start = float(tail.min())
    excess = np.sort(tail - start)[1:]
    mean = float(excess.mean())
    odds = count / len(ordinary) * looked_at / chance
    if not exactly or mean <= 0:
        return start + mean * math.log(odds)
    shape = _shape(excess)
    return float(start + mean * (1 - shape) / shape * math.expm1(shape * math.log(odds)))


def _shape(excess: Numbers) -> float:
    from scipy.stats import genpareto

    thinned = excess[:: max(1, len(excess) // 1000)]  # it is sorted: every k-th has the same shape
    fitted = genpareto.fit(thinned, floc=0)[0]
    shape = (len(excess) * fitted + PRIOR_WEIGHT * PRIOR_SHAPE) / (len(excess) + PRIOR_WEIGHT)
    return min(max(float(shape), 0.01), 0.5)


OUTLIER_MARGIN = 2.0  # and a peak is that much higher than any that is taken for noise


def outlier_threshold(peaks: Numbers, ordinary: Numbers, looked_at: int, chance: float) -> float:
    """The level above which peaks are no chance. From the lowest on each is taken for noise until one cannot be, since
    several real ones would hide each other if all were.

    Args:
        peaks: surprises under suspicion.
        ordinary: the other rows' surprises.
        looked_at: rows that could have been surprising.
        chance: 0 to 1, for all of them together.
    """
    ordinary = ordinary[np.isfinite(ordinary)]
    level = max_quantile(ordinary, looked_at, chance, exactly=False)
    suspects, noise = np.sort(peaks[peaks > level]), np.concatenate([ordinary, peaks[peaks <= level]])
    below = np.concatenate([[noise.max(initial=0.0)], suspects[:-1]])
    for first in np.flatnonzero(suspects > OUTLIER_MARGIN * below).tolist():
        level = max(
            max_quantile(np.concatenate([noise, suspects[:first]]), looked_at, chance), OUTLIER_MARGIN * below[first]
        )
        if suspects[first] > level:
            return float(level)
    return np.inf
