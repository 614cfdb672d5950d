"""Splits the text of a report into rows, which terminals, pages and notebooks lay out in their own way."""

from __future__ import annotations

import re
from typing import NamedTuple

_PREFIX = "torchnan: "
_LABEL, _VALUE = slice(2, 11), slice(12, None)  # of a line


class Row(NamedTuple):
    """A line of a report: ``made by``, ``output``, ...; the label of a continuation line is empty."""

    label: str
    value: str


def shown_of(count: int, most: int) -> int:
    """Returns how many entries of a list to show before a note about the rest. The note never stands for a single
    entry, because the entry would fit in its place."""
    return count if count <= most + 1 else most


def title(report: str) -> str:
    """Returns the first line, without the name of the package: ``NaN at step 3 (cpu)``."""
    return report.partition("\n")[0].removeprefix(_PREFIX)


def rows(report: str) -> list[Row]:
    """Returns the other lines."""
    return [Row(line[_LABEL].strip(), line[_VALUE]) for line in report.split("\n")[1:]]


def value_of(report: str, label: str) -> str:
    """Returns the first line under a label, ``""`` if there is none."""
    return next((row.value for row in rows(report) if row.label == label), "")


def origin(report: str) -> str:
    """Returns in one line the operation that made the value, its module, and its source line."""
    return re.sub(r", output \d+$|, output \d+(?= )| (?= +)", "", value_of(report, "made by"))


def summary(report: str) -> str:
    """Returns a report in one line: step, operation, module, source line, number of others and of repeats."""
    counts = [value_of(report, "others").partition(":")[0], value_of(report, "repeats")]
    return "; ".join([f"{title(report)}: {origin(report)}", *filter(None, counts)])
