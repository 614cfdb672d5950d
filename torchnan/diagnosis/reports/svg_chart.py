"""Lines, bands and marks as the geometry of an SVG: numbers in, strings of coordinates out."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 24  # margins
POINTS = 700  # of a line: about one per pixel; of more, the highest and the lowest of each pixel are drawn
TICKS = 5


@dataclasses.dataclass(frozen=True)
class Axis:
    """From values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, values: Numbers) -> Numbers:
        with np.errstate(all="ignore"):
            shown = np.log10(values) if self.logarithmic else np.asarray(values, dtype=np.float64)
        low, high = (math.log10(self.low), math.log10(self.high)) if self.logarithmic else (self.low, self.high)
        return self.start + (shown - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values, and where they are."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last > first:
                powers = range(first, last + 1, max(1, (last - first) // TICKS + 1))
                return [(float(self(np.array(10.0**p))), label(10.0**p)) for p in powers]
        values = _round_values(self.low, self.high)
        return [(float(self(np.array(v))), label(v)) for v in values if not self.logarithmic or v > 0]


def _round_values(low: float, high: float) -> list[float]:
    """1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / apart - 1e-9)
    return [i * apart for i in range(first, math.floor(high / apart + 1e-9) + 1)]


def label(value: float) -> str:
    """A tick's."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.6g}"


def axis_of(values: Numbers, start: float, end: float) -> Axis:
    """For all finite values: logarithmic where linear would show nothing but the largest."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Axis(0, 1, start, end)
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and (high > 30 * float(np.median(finite)) or high > 1e3 * low):
        return Axis(low / 1.3, high * 1.3, start, end, logarithmic=True)
    room = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
    return Axis(low - room, high + room, start, end)


def downsample(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """The lowest and the highest of each pixel, in the order they come in: no spike is lost."""
    if len(x) <= 2 * POINTS:
        return x, y
    edges = np.linspace(0, len(x), POINTS + 1).astype(int)
    picked = []
    for begin, end in itertools.pairwise(edges.tolist()):
        part = y[begin:end]
        picked += sorted({begin + int(part.argmin()), begin + int(part.argmax())})
    return x[picked], y[picked]


def line(x: Numbers, y: Numbers) -> str:
    """As the ``d`` of a path."""
    if not len(x):
        return ""
    points = np.column_stack([np.round(x, 1), np.round(np.clip(y, -1e4, 1e4), 1)])
    return "M" + "L".join(f"{a:g} {b:g}" for a, b in points.tolist())


def area(x: Numbers, low: Numbers, high: Numbers) -> str:
    """Between two lines."""
    return line(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]])) + "Z" if len(x) else ""
