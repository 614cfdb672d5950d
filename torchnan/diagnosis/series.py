"""A column as a series: its finite values, and what a window of them foretells of the next."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from torchnan.diagnosis.run import Run
from torchnan.diagnosis.thresholds import Thresholds

Numbers = NDArray[np.float64]
Marks = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Series:
    """The finite values of a column, and their steps."""

    step: NDArray[np.int64]
    values: Numbers

    @classmethod
    def from_run(cls, run: Run, column: str, before: int | None = None) -> Series:
        """Of a column of a run, of the steps below ``before``."""
        values = run.column(column)
        rows = values.given & np.isfinite(values.values)
        if before is not None:
            rows &= run.step < before
        return cls(run.step[rows], values.values[rows])

    def __len__(self) -> int:
        return len(self.step)

    @functools.cached_property
    def stride(self) -> float:
        """Steps from one row to the next, usually."""
        return float(np.median(np.diff(self.step))) if len(self) > 1 else 1.0

    def to_rows(self, steps: float) -> int:
        """How many rows as many steps have."""
        return max(1, round(steps / self.stride))

    def window_rows(self, thresholds: Thresholds) -> int:
        """Rows that the mean and deviation are taken from: a short run has shorter windows."""
        wanted = max(self.to_rows(thresholds.spike_window), thresholds.least_rows)
        return min(wanted, max(thresholds.least_rows, len(self) // 3))

    def row_at(self, step: int) -> int:
        """Number of rows below a step."""
        return int(np.searchsorted(self.step, step))


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the window before each row says of it; NaN for rows without a whole window before them.

    Attributes:
        mean, sigma: of the window.
        noise: standard deviation about the window's straight line.
        surprise: how far above that line, drawn on to it, the row is, in units of noise: a loss that falls or rises
            steadily is no surprise.
    """

    mean: Numbers
    sigma: Numbers
    noise: Numbers
    surprise: Numbers


def predict(values: Numbers, window: int, usual: Marks) -> Prediction:
    """For each row from the ``window`` usual rows before it; what is not usual foretells nothing.

    Sums are convolutions, not differences of running sums: after a value of 1e8 those would stay wrong for good.
    """
    centre = float(np.median(values)) if len(values) else 0.0
    y = values[usual] - centre
    if len(y) < window:
        return Prediction(*(np.full(len(values), np.nan) for _ in range(4)))
    x = np.arange(window) - (window - 1) / 2
    with np.errstate(all="ignore"):  # a loss of 1e300 has no square; comparisons with what comes of it are false
        mean = np.convolve(y, np.full(window, 1 / window), "valid")
        squares = np.convolve(y * y, np.ones(window), "valid")
        slope = np.convolve(y, x[::-1] / (x @ x), "valid")
        about_mean = np.maximum(squares - window * mean**2, 0)
        about_line = np.maximum(about_mean - slope**2 * (x @ x), 0)
        noise = np.sqrt(about_line / (window - 2) + _resolution(values) ** 2)
        foretold = centre + mean + slope * (window + 1) / 2
        before = np.cumsum(usual) - usual - window  # which window ends before the row
        told, at = before >= 0, np.maximum(before, 0)
        spread = [
            np.where(told, of[at], np.nan) for of in (centre + mean, np.sqrt(about_mean / window), noise, foretold)
        ]
        return Prediction(spread[0], spread[1], spread[2], (values - spread[3]) / spread[2])


def _resolution(values: Numbers) -> float:
    """What tells two values apart: a loss that is written with two decimals cannot move by less than 0.01."""
    steps = np.abs(np.diff(values[-5000:]))
    steps = steps[steps > 0]
    tiny = 1e-9 * float(np.median(np.abs(values))) + float(np.finfo(np.float64).tiny)
    return max(float(steps.min()) if len(steps) else 0.0, tiny)


def forward_mean(values: Numbers, rows: int) -> Numbers:
    """Mean of each row and those after it, ``rows`` in all; NaN where the series ends before."""
    told = np.full(len(values), np.nan)
    if len(values) >= rows:
        told[: len(values) - rows + 1] = np.convolve(values, np.full(rows, 1 / rows), "valid")
    return told
