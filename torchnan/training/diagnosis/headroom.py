"""Forecasts which outputs will leave the range of their dtype, and when."""

from __future__ import annotations

import numpy as np

from torchnan.training.diagnosis.arrays import FloatArray, IntArray
from torchnan.training.diagnosis.run import Headroom, Run
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Forecast

# dtype -> its largest number, and the narrowest dtype that holds more
RANGES = {
    "float8_e4m3fn": (448.0, "bfloat16"),
    "float8_e5m2": (57344.0, "bfloat16"),
    "float16": (65504.0, "bfloat16"),
    "bfloat16": (3.3895313892515355e38, "float64"),
    "float32": (3.4028234663852886e38, "float64"),
}
MAX_VALUES = 50  # the newest, for the growth
MIN_VALUES = 6


def forecasts(run: Run, thresholds: Thresholds) -> list[Forecast]:
    """Returns the forecasts, the most urgent first."""
    found = [forecast for series in run.headroom if (forecast := _forecast(series, thresholds)) is not None]
    return sorted(found, key=lambda f: (f.overflow is None, f.overflow or 0, -f.share))


def _forecast(series: Headroom, thresholds: Thresholds) -> Forecast | None:
    if series.dtype not in RANGES or not len(series.step):
        return None
    limit, enough = RANGES[series.dtype]
    rows = np.isfinite(series.largest) & (series.largest > 0)
    step, largest = series.step[rows][-MAX_VALUES:], series.largest[rows][-MAX_VALUES:]
    if not len(step):
        return None
    share = float(largest[-1]) / limit
    growth = _growth(step, largest, thresholds)
    now = Forecast(series.module, series.dtype, enough, int(step[-1]), float(largest[-1]), share)
    if growth is None:
        return now if share > thresholds.headroom_share else None
    left = max(0.0, -np.log2(share)) / growth
    # No further ahead than the observed history: growth in the first steps of a training does not go on.
    if share <= thresholds.headroom_share and left > min(thresholds.headroom_steps, step[-1] - step[0]):
        return None
    overflow = int(step[-1] + left)
    return Forecast(
        now.module, now.dtype, enough, now.step, now.largest, share, doubling=float(1 / growth), overflow=overflow
    )


def _growth(step: IntArray, largest: FloatArray, thresholds: Thresholds) -> float | None:
    """Returns the doublings per step, or ``None`` if the growth is not significant."""
    if len(step) < MIN_VALUES:
        return None
    from scipy.stats import theilslopes

    fitted = theilslopes(np.log2(largest), step, alpha=1 - thresholds.false_alarm)
    return float(fitted.slope) if fitted.low_slope > 0 else None
