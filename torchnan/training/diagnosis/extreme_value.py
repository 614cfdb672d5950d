"""Extreme value theory: how high noise alone may rise, extrapolated from the tail of a run's own surprises."""

from __future__ import annotations

import math

import numpy as np

from torchnan.training.diagnosis.arrays import FloatArray

TAIL_SHARE = 0.1  # of the surprises, the largest
MIN_TAIL = 10
# Few excesses say little about the shape of a tail, so it is averaged with that of Student's t with seven degrees of
# freedom, weighted as this many excesses.
PRIOR_SHAPE, PRIOR_WEIGHT = 0.15, 30
OUTLIER_MARGIN = 2.0  # a peak is higher than all noise by this factor


def max_quantile(ordinary: FloatArray, tested: int, chance: float, *, fit_shape: bool = True) -> float:
    """Returns the surprise that the maximum of ``tested`` rows of noise exceeds only with probability ``chance``.

    Peaks over a threshold follow a generalised Pareto distribution whatever the noise is (Pickands, Balkema, de Haan).

    Args:
        ordinary: surprises of rows that are not suspicious.
        tested: number of rows that could have been surprising.
        chance: probability for all of them together, 0 to 1.
        fit_shape: fit the shape of the tail; otherwise use an exponential one, which is cheap and never higher.
    """
    if len(ordinary) < 2 * MIN_TAIL:
        return math.inf
    count = max(MIN_TAIL, round(TAIL_SHARE * len(ordinary)))
    tail = np.partition(ordinary, -count - 1)[-count - 1 :]
    start = float(tail.min())
    excess = np.sort(tail - start)[1:]
    mean = float(excess.mean())
    odds = count / len(ordinary) * tested / chance
    if not fit_shape or mean <= 0:
        return start + mean * math.log(odds)
    shape = _shape(excess)
    return float(start + mean * (1 - shape) / shape * math.expm1(shape * math.log(odds)))


def _shape(excess: FloatArray) -> float:
    from scipy.stats import genpareto

    thinned = excess[:: max(1, len(excess) // 1000)]  # it is sorted: every k-th has the same shape
    fitted = genpareto.fit(thinned, floc=0)[0]
    shape = (len(excess) * fitted + PRIOR_WEIGHT * PRIOR_SHAPE) / (len(excess) + PRIOR_WEIGHT)
    return min(max(float(shape), 0.01), 0.5)


def outlier_threshold(peaks: FloatArray, ordinary: FloatArray, tested: int, chance: float) -> float:
    """Returns the level above which peaks exceed chance.

    Peaks are added to the noise from the lowest on until one stands out, because several real ones would hide each
    other if all counted as noise.

    Args:
        peaks: surprises of suspicious rows.
        ordinary: surprises of the other rows.
        tested: number of rows that could have been surprising.
        chance: probability for all of them together, 0 to 1.
    """
    ordinary = ordinary[np.isfinite(ordinary)]
    level = max_quantile(ordinary, tested, chance, fit_shape=False)
    suspects, noise = np.sort(peaks[peaks > level]), np.concatenate([ordinary, peaks[peaks <= level]])
    below = np.concatenate([[noise.max(initial=0.0)], suspects[:-1]])
    for first in np.flatnonzero(suspects > OUTLIER_MARGIN * below).tolist():
        level = max(
            max_quantile(np.concatenate([noise, suspects[:first]]), tested, chance), OUTLIER_MARGIN * below[first]
        )
        if suspects[first] > level:
            return float(level)
    return np.inf
