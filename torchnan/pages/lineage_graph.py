"""Lays out the graph of a finding: arguments, the operation that made the value, later operations, harm."""

from __future__ import annotations

import dataclasses
import math
import os

from torchnan.config.text import printable
from torchnan.detection import report_rows
from torchnan.detection.finding import Finding, Input

NODE, GAP = 220, 40  # pixels, here and below
COLUMNS = {"wide": 4, "narrow": 2}  # by screen
ROW_GAP, ARGUMENT_GAP = 30, 10
TALL, LOW = 72, 54  # a node with a bar or a third line, and other nodes
MAX_ARGUMENTS = 4
LETTERS = 28  # letters in a line of a node

# The largest finite value of a dtype; any other dtype uses that of float64.
LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.40e38, "complex64": 3.40e38}
_SMALLEST = 1e-8  # a bar shows magnitudes above this


@dataclasses.dataclass(frozen=True)
class Bar:
    """The range of finite values in pixels, on a scale from the most negative to the largest value of the dtype. Zero
    width if there are none."""

    start: float
    width: float
    has_minus_inf: bool
    has_nan: bool
    has_inf: bool


@dataclasses.dataclass
class Node:
    """A box: its kind, its lines of text, its tooltip with the full text, and its position."""

    kind: str  # "argument", "origin", "step", "more", "harm"
    lines: list[str]
    tooltip: str
    bar: Bar | None = None
    x: float = 0
    y: float = 0

    @property
    def height(self) -> int:
        """Pixels."""
        return TALL if self.bar is not None or len(self.lines) > 2 else LOW


@dataclasses.dataclass(frozen=True)
class Graph:
    """Boxes, arrows (the ``d`` of a path), and the size of the picture."""

    nodes: list[Node]
    arrows: list[str]
    width: float
    height: float


def graph(finding: Finding, screen: str) -> Graph:
    """Returns the graph of a finding, placed.

    Args:
        finding: the finding.
        screen: "wide" or "narrow".
    """
    shown = report_rows.shown_of(len(finding.inputs), MAX_ARGUMENTS)
    arguments = [_argument(one) for one in finding.inputs[:shown]]
    if left_out := [printable(one.name) for one in finding.inputs[shown:]]:
        arguments.append(Node("more", [f"... {len(left_out)} more arguments"], ", ".join(left_out[:20])))
    return _placed(arguments, [_origin(finding), *_steps(finding), _harm(finding)], COLUMNS[screen])


def _argument(given: Input) -> Node:
    name, dtype = printable(given.name), printable(given.dtype)
    if given.dtype == "number":
        value = _range(given)
        return Node("argument", [name, value], f"{name} {value}")
    type_ = f"{dtype}{list(given.shape)}"
    value = "overwritten by the operation" if given.overwritten else _range(given)
    return Node("argument", [f"{name} {type_}", value], f"{name} {type_} {value}", _bar(given))


def _range(given: Input) -> str:
    counts = {"nan": given.nan, "+inf": given.posinf, "-inf": given.neginf}
    bad = [name if given.dtype == "number" else f"{count} {name}" for name, count in counts.items() if count]
    if given.min is None or given.max is None:
        known = [] if given.absmax is None else [f"|x| up to {given.absmax:.4g}"]
    elif given.min == given.max:
        known = [f"{given.min:.6g}"]
    else:
        known = [f"{given.min:.4g} to {given.max:.4g}"]
    return ", ".join(known + bad) or "no values"


def _bar(given: Input) -> Bar | None:
    if given.overwritten or not (given.nan or given.posinf or given.neginf or given.min is not None):
        return None
    start = width = 0.0
    if given.min is not None and given.max is not None:
        start, end = _position(given.min, given.dtype), _position(given.max, given.dtype)
        thin = max(0.0, 3 - (end - start))  # so that a single value is visible, too
        start, width = round(start - thin / 2, 1), round(end - start + thin, 1)
    return Bar(start, width, has_minus_inf=given.neginf > 0, has_nan=given.nan > 0, has_inf=given.posinf > 0)


def _position(value: float, dtype: str) -> float:
    """Returns the position of a value between the edges of a node; linear in the logarithm of its magnitude."""
    inner, span = NODE / 2 - 18, math.log10(LARGEST.get(dtype, 1.79e308)) - math.log10(_SMALLEST)
    magnitude = max(abs(value), _SMALLEST)
    share = min(1.0, (math.log10(magnitude) - math.log10(_SMALLEST)) / span)
    return NODE / 2 + math.copysign(share * inner, value)


def _origin(f: Finding) -> Node:
    made_by = report_rows.value_of(str(f), "made by")
    what, _, place = made_by.rpartition("   at ")
    what, place = (what, place) if what else (made_by, "")
    output = report_rows.value_of(str(f), "output")
    counts = output.partition("  ")[2].partition("  first at")[0].replace("  ", ", ")
    type_ = f"{printable(f.dtype)}{list(f.shape)}"
    name = printable(f.op) if f.origin == "op" else what.partition(",")[0]
    lines = [name, _basename(place), f"{counts} in {type_}"]
    return Node("origin", lines, f"{made_by}; {output}")


def _steps(f: Finding) -> list[Node]:
    nodes = []
    for i, step in enumerate(f.lineage):
        if f.lineage_omitted and i == len(f.lineage) - 1:
            nodes.append(Node("more", [f"... {f.lineage_omitted} more"], f"{f.lineage_omitted} operations left out"))
        place = f"{printable(os.path.basename(step.file))}:{step.line}" if step.file else ""
        nodes.append(Node("step", [printable(step.op), place], str(step)))
    return nodes


def _harm(f: Finding) -> Node:
    text = report_rows.value_of(str(f), "harm")
    what, _, place = text.partition(" (")
    return Node("harm", [what, _basename(place.partition(")")[0])], text)


def _basename(place: str) -> str:
    return place.rpartition("/")[2]


def _placed(arguments: list[Node], chain: list[Node], columns: int) -> Graph:
    """Places arguments in a column, and the chain to the right of it, line by line."""
    first = 1 if arguments else 0
    stack = sum(node.height for node in arguments) + ARGUMENT_GAP * max(0, len(arguments) - 1)
    line_height = max(stack, TALL)
    y = (line_height - stack) / 2 + 2
    for node in arguments:
        node.x, node.y = 1, y
        y += node.height + ARGUMENT_GAP
    arrows, top, column = [], 2.0, first
    for i, node in enumerate(chain):
        if column == columns:
            top, line_height, column = top + line_height + ROW_GAP, TALL, 0
        node.x = 1 + column * (NODE + GAP)
        node.y = top + (line_height - node.height) / 2
        arrows += [_arrow(chain[i - 1], node)] if i else [_arrow(one, node) for one in arguments]
        column += 1
    return Graph(arguments + chain, arrows, columns * (NODE + GAP) - GAP + 2, top + line_height + 2)


def _arrow(start: Node, end: Node) -> str:
    """Returns a curve from the right edge to the left one, or down to the next line."""
    if end.x > start.x:
        x, y, to_x, to_y = start.x + NODE, start.y + start.height / 2, end.x - 7, end.y + end.height / 2
        middle = (x + to_x) / 2
        return f"M{x:g} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"
    x, y, to_x, to_y = start.x + NODE / 2, start.y + start.height, end.x + NODE / 2, end.y - 7
    middle = end.y - ROW_GAP / 2
    return f"M{x:g} {y:g}V{middle:g}H{to_x:g}V{to_y:g}"


def fit(text: str) -> str:
    """Cuts a line of a node in its middle, if it is wider than the node."""
    half = (LETTERS - 1) // 2
    return text if len(text) <= LETTERS else f"{text[:half]}…{text[-half:]}"
