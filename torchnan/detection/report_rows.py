"""The report of a finding in rows: what terminals, pages and notebooks lay out, each in its way."""

from __future__ import annotations

import dataclasses
import re

from torchnan.detection.finding import Finding

_ROW = re.compile(r"  (?P<label>[a-z ]{9}) (?P<value>.*)")
_PREFIX = "torchnan: "


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of a report: ``made by``, ``output``, ...; the label of a line that continues the one above is empty."""

    label: str
    value: str


def title(finding: Finding) -> str:
    """Returns the first line of the report, without the name of the package: ``NaN at step 3 (cpu)``."""
    return str(finding).partition("\n")[0].removeprefix(_PREFIX)


def rows(finding: Finding) -> list[Row]:
    """Returns the other lines of the report."""
    matches = map(_ROW.fullmatch, str(finding).split("\n")[1:])
    return [Row(match["label"].strip(), match["value"]) for match in matches if match is not None]


def value_of(finding: Finding, label: str) -> str:
    """Returns the first line under a label, ``""`` where the report has none."""
    return next((row.value for row in rows(finding) if row.label == label), "")


def summary(finding: Finding) -> str:
    """Returns a finding in one line: when, what made it and where, what it did."""
    made_by = re.sub(r" {2,}", " ", value_of(finding, "made by"))
    return f"{title(finding)}: {made_by}; {value_of(finding, 'harm')}"
