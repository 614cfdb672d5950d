"""Computes the geometry of SVG lines, areas and axes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 24  # margins
POINTS = 700  # per line: about one per pixel
TICKS = 5
DASH = 6  # pixels
_NOWHERE: FloatArray = np.empty(0)


@dataclasses.dataclass(frozen=True)
class Axis:
    """Maps values to pixels, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, values: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            shown = np.log10(values) if self.logarithmic else np.asarray(values, dtype=np.float64)
        low, high = (math.log10(self.low), math.log10(self.high)) if self.logarithmic else (self.low, self.high)
        return self.start + (shown - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns round values and their positions."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last > first:
                powers = range(first, last + 1, max(1, (last - first) // TICKS + 1))
                return [(float(self(np.array(10.0**p))), label(10.0**p)) for p in powers]
        values = _round_values(self.low, self.high)
        return [(float(self(np.array(v))), label(v)) for v in values if not self.logarithmic or v > 0]


def _round_values(low: float, high: float) -> list[float]:
    """Returns values that are 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / apart - 1e-9)
    return [i * apart for i in range(first, math.floor(high / apart + 1e-9) + 1)]


def label(value: float) -> str:
    """Returns the label of a tick."""
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.6g}"


def axis_of(values: FloatArray, start: float, end: float) -> Axis:
    """Returns an axis for all finite values; logarithmic if a linear one would show only the largest."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Axis(0, 1, start, end)
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and (high > 30 * float(np.median(finite)) or high > 1e3 * low):
        return Axis(low / 1.3, high * 1.3, start, end, logarithmic=True)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    return Axis(low - room, high + room, start, end)


def downsample(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the lowest and the highest point of each pixel, in order, so that no spike is lost."""
    if len(x) <= 2 * POINTS:
        return x, y
    edges = np.linspace(0, len(x), POINTS + 1).astype(int)
    picked = []
    for begin, end in itertools.pairwise(edges.tolist()):
        part = y[begin:end]
        picked += sorted({begin + int(part.argmin()), begin + int(part.argmax())})
    return x[picked], y[picked]


def line(x: FloatArray, y: FloatArray, gaps: FloatArray = _NOWHERE) -> str:
    """Returns the ``d`` attribute of a path, which is interrupted between two points that have a gap between them.

    Args:
        x, y: the points. A point that stands alone is drawn as a dash.
        gaps: sorted.
    """
    points = np.column_stack([np.round(x, 1), np.round(np.clip(y, -1e4, 1e4), 1)])
    parts = np.split(points, np.flatnonzero(np.diff(np.searchsorted(gaps, x))) + 1)
    return "".join(_stroke(part.tolist()) for part in parts if len(part))


def _stroke(points: list[list[float]]) -> str:
    if len(points) == 1:
        return f"M{points[0][0] - DASH / 2:g} {points[0][1]:g}h{DASH}"
    return "M" + "L".join(f"{a:g} {b:g}" for a, b in points)


def area(x: FloatArray, low: FloatArray, high: FloatArray) -> str:
    """Returns the ``d`` attribute of the area between two lines."""
    return line(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]])) + "Z" if len(x) else ""
