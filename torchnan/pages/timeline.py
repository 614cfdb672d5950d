"""Places incidents on the time line of a run: steps from left to right, a lane for each rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from torchnan.detection import report_rows
from torchnan.detection.finding import Finding
from torchnan.distributed.incidents import Incident, Sighting
from torchnan.pages import svg_chart

WIDTHS = {"wide": 760, "narrow": 380}  # width in pixels by screen
LEFT, RIGHT, TOP, LANE, BOTTOM = 74, 20, 6, 28, 24
MARK = 20  # pixels from one mark to the next
MAX_LANES = 24
MAX_ROWS = 8  # of marks in a lane, which would hide each other in one
MAX_MARKS = 200

_Event = tuple[int, Finding, str, Sighting]  # number and first finding of an incident, kind of the mark, rank and step


@dataclasses.dataclass(frozen=True)
class Mark:
    """An incident on a rank at a step; ``kind`` is its level, or ``"received"``."""

    x: float
    y: float
    number: int
    kind: str
    tooltip: str


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A picture.

    Attributes:
        lanes: name and height of the line of each rank.
        marks: of incidents.
        x_ticks: positions and names of steps.
        height: pixels.
        left_out: ranks without room.
        screen: the intended screen, "wide" or "narrow".
        width: pixels, including ``left`` for the names of the lanes.
    """

    lanes: list[tuple[str, float]]
    marks: list[Mark]
    x_ticks: list[tuple[float, str]]
    height: float
    left_out: int
    screen: str
    width: int
    left: int = LEFT


def timelines(story: Sequence[Incident]) -> list[Timeline]:
    """Returns the time line for wide and for narrow screens; nothing if no finding has a step."""
    events = [
        (number, incident.first, kind, sighting)
        for number, incident in enumerate(story, 1)
        for kind, sighting in _sightings(incident)
    ]
    steps = [one.step for *_, one in events if one.step is not None]
    if not steps:
        return []
    return [_placed(events, steps, screen) for screen in WIDTHS]


def _placed(events: list[_Event], steps: list[int], screen: str) -> Timeline:
    width = WIDTHS[screen]
    ranks = sorted({_lane(one) for *_, one in events})
    shown = ranks[: report_rows.shown_of(len(ranks), MAX_LANES)]
    axis = svg_chart.Axis(min(1, *steps), max(2, *steps), LEFT, width - RIGHT)
    marked = [(_x(axis, one.step), event) for event in events if (one := event[-1]).step is not None]
    marked = [(x, event) for x, event in marked if _lane(event[-1]) in shown][:MAX_MARKS]
    rows = _rows([(x, _lane(event[-1])) for x, event in marked])
    last_rows = dict.fromkeys(shown, 0)
    for row, (_, event) in zip(rows, marked, strict=True):
        last_rows[_lane(event[-1])] = max(row, last_rows[_lane(event[-1])])
    tops, height = {}, float(TOP)
    for rank, last in last_rows.items():
        tops[rank] = height
        height += LANE * (1 + last)
    marks = [
        Mark(x, tops[_lane(one)] + LANE * (row + 0.5), number, kind, _describe(number, first, kind, one))
        for row, (x, (number, first, kind, one)) in zip(rows, marked, strict=True)
    ]
    names = [("run" if rank < 0 else f"rank {rank}", top + LANE * 0.5) for rank, top in tops.items()]
    ticks = [(x, name) for x, name in axis.ticks() if "." not in name]
    return Timeline(names, marks[::-1], ticks, height + BOTTOM, len(ranks) - len(shown), screen, width)


def _rows(marks: list[tuple[float, int]]) -> list[int]:
    """Returns for each mark, of a position and a lane, the first row of the lane in which it hides no other."""
    rows = [0] * len(marks)
    ends: dict[int, list[float]] = {}
    for i, (x, lane) in sorted(enumerate(marks), key=lambda one: one[1][0]):
        last = ends.setdefault(lane, [])
        free = next((row for row, end in enumerate(last) if x - end >= MARK), min(len(last), MAX_ROWS - 1))
        last[free : free + 1] = [x]
        rows[i] = free
    return rows


def _sightings(incident: Incident) -> list[tuple[str, Sighting]]:
    first = incident.first
    made = [Sighting(first.rank, first.step), *incident.again]
    return [(first.level, one) for one in made] + [("received", one) for one in dict.fromkeys(incident.received)]


def _lane(sighting: Sighting) -> int:
    return -1 if sighting.rank is None else sighting.rank


def _x(axis: svg_chart.Axis, step: int) -> float:
    return round(float(axis(np.array(float(step)))), 1)


def _describe(number: int, first: Finding, kind: str, sighting: Sighting) -> str:
    what = "received" if kind == "received" else "NaN" if first.kind == "nan" else "Inf"
    rank = "" if sighting.rank is None else f" on rank {sighting.rank}"
    return f"{number}: {what} at step {sighting.step:,}{rank}"
