"""A column as a series of finite values, and the prediction of each value from a window before it."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from torchnan.training.diagnosis.arrays import BoolArray, FloatArray, IntArray, median
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.thresholds import Thresholds


@dataclasses.dataclass(frozen=True)
class Series:
    """Finite values of a column, and their steps."""

    step: IntArray
    values: FloatArray

    @classmethod
    def from_run(cls, run: Run, column: str, before: int | None = None) -> Series:
        """Returns the series of a column, of the steps below ``before``."""
        values = run.column(column)
        rows = values.given & np.isfinite(values.values)
        if before is not None:
            rows &= run.step < before
        return cls(run.step[rows], values.values[rows])

    def __len__(self) -> int:
        return len(self.step)

    @functools.cached_property
    def stride(self) -> float:
        """Median number of steps between two rows."""
        return median(np.diff(self.step)) if len(self) > 1 else 1.0

    def to_rows(self, steps: float) -> int:
        """Converts a number of steps to rows, at least 1."""
        return max(1, round(steps / self.stride))

    def window_rows(self, thresholds: Thresholds) -> int:
        """Returns the number of rows for mean and deviation; fewer in a short run."""
        wanted = max(self.to_rows(thresholds.spike_window), thresholds.least_rows)
        return min(wanted, max(thresholds.least_rows, len(self) // 3))

    def row_at(self, step: int) -> int:
        """Returns the first row at or after a step."""
        return int(np.searchsorted(self.step, step))


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction from the window before each row; NaN for rows without a whole window before them.

    Attributes:
        mean, sigma: of the window.
        noise: standard deviation about the straight line through the window.
        surprise: how far the value is above that line, extended to its row, in units of noise. A loss that falls or
            rises steadily is no surprise.
    """

    mean: FloatArray
    sigma: FloatArray
    noise: FloatArray
    surprise: FloatArray


def predict(values: FloatArray, window: int, usual: BoolArray) -> Prediction:
    """Predicts each row from the ``window`` usual rows before it.

    Sums are convolutions, not differences of running sums: after a value of 1e8, those would stay wrong.
    """
    centre = median(values) if len(values) else 0.0
    y = values[usual] - centre
    if len(y) < window:
        return Prediction(*(np.full(len(values), np.nan) for _ in range(4)))
    x = np.arange(window) - (window - 1) / 2
    with np.errstate(all="ignore"):  # the square of 1e300 overflows; comparisons with the result are false
        mean = np.convolve(y, np.full(window, 1 / window), "valid")
        squares = np.convolve(y * y, np.ones(window), "valid")
        slope = np.convolve(y, x[::-1] / (x @ x), "valid")
        about_mean = np.maximum(squares - window * mean**2, 0)
        about_line = np.maximum(about_mean - slope**2 * (x @ x), 0)
        noise = np.sqrt(about_line / (window - 2) + _resolution(values) ** 2)
        predicted = centre + mean + slope * (window + 1) / 2
        before = np.cumsum(usual) - usual - window  # index of the window that ends before the row
        known, at = before >= 0, np.maximum(before, 0)
        spread = [
            np.where(known, of[at], np.nan) for of in (centre + mean, np.sqrt(about_mean / window), noise, predicted)
        ]
        return Prediction(spread[0], spread[1], spread[2], (values - spread[3]) / spread[2])


def _resolution(values: FloatArray) -> float:
    """Returns the smallest difference between two values: a loss written with two decimals cannot move by less than
    0.01.
    """
    steps = np.abs(np.diff(values[-5000:]))
    steps = steps[steps > 0]
    tiny = 1e-9 * median(np.abs(values)) + float(np.finfo(np.float64).tiny)
    return max(float(steps.min()) if len(steps) else 0.0, tiny)


def forward_mean(values: FloatArray, rows: int) -> FloatArray:
    """Returns the mean of each row and those after it, ``rows`` in all; NaN where the series ends before."""
    known = np.full(len(values), np.nan)
    if len(values) >= rows:
        known[: len(values) - rows + 1] = np.convolve(values, np.full(rows, 1 / rows), "valid")
    return known
