"""Writes the page of a log of findings, or of the logs of several ranks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence

from torchnan.config.text import counted, printable
from torchnan.detection import report_rows
from torchnan.detection.finding import Finding
from torchnan.distributed.incidents import Incident, Story, name_ranks
from torchnan.pages.lineage_graph import fit, graph
from torchnan.pages.template import render_page
from torchnan.pages.timeline import timelines

MAX_LOGS = 4
MAX_IN_FULL = 20
MAX_IN_A_LINE = 500
MAX_DEPTH = 12  # of the tree of modules
MAX_MODULES = 200


def html(findings: Iterable[Finding], sources: Sequence[str], notes: Iterable[str] = ()) -> str:
    """Returns the page. No path from a finding is opened.

    Args:
        findings: of all ranks, in any order; iterated once, and not held.
        sources: the names of the sources, for the page.
        notes: the unreadable parts of the sources; read after the findings.

    Raises:
        ImportError: Jinja2 or NumPy is not installed.
    """
    told = Story()
    for finding in findings:
        told.add(finding)
    story = told.incidents()
    return render_page(
        "torchnan.pages",
        "findings.html.j2",
        style="findings.css",
        filters={"fit": fit, "title_of": report_rows.title, "rows_of": report_rows.rows, "graph_of": graph},
        headline=_headline(story),
        about=_about(told, len(story), sources),
        story=story,
        in_full=story[:MAX_IN_FULL],
        in_a_line=[report_rows.summary(str(one.first)) for one in story[MAX_IN_FULL : MAX_IN_FULL + MAX_IN_A_LINE]],
        left_out=len(story) - MAX_IN_FULL - MAX_IN_A_LINE,
        timelines=timelines(story),
        modules=module_tree(story),
        notes=[printable(note) for note in notes],
    )


def _headline(story: Sequence[Incident]) -> str:
    if not story:
        return "no findings"
    first = story[0].first
    kind = "NaN" if first.kind == "nan" else "Inf"
    when = "" if first.step is None else f" at step {first.step:,}"
    module = f" in {printable(first.module)}" if first.module and not first.constant else ""  # a constant has no module
    return f"{kind}{when}: {_origin(first)}{module}"


def _origin(first: Finding) -> str:
    if first.origin == "op":
        return printable(first.op)
    return report_rows.value_of(str(first), "made by").partition("   ")[0]


def _about(told: Story, causes: int, sources: Sequence[str]) -> str:
    parts = [counted(told.count, "finding")]
    parts += [f"{causes:,} causes"] if causes > 1 else []
    parts += [name_ranks(told.ranks)] if told.ranks else []
    shown = report_rows.shown_of(len(sources), MAX_LOGS)
    named = [printable(os.path.basename(source)) for source in sources[:shown]]
    parts += [", ".join(named) + (f" and {counted(len(sources) - shown, 'more log')}" if len(sources) > shown else "")]
    return " · ".join(parts)


@dataclasses.dataclass
class Place:
    """A module, parameter or buffer: its depth (0 is the model), its name in its parent, the incidents made in it."""

    depth: int
    name: str
    incidents: list[int]


def module_tree(story: Sequence[Incident]) -> list[Place]:
    """Returns the modules that lead to each incident, parents before children; empty if no module is known."""
    numbers: dict[tuple[str, ...], list[int]] = {}
    for number, incident in enumerate(story, 1):
        path = _path(incident)
        if path is None:
            continue
        for depth in range(len(path) + 1):
            numbers.setdefault(path[:depth], [])
        numbers[path].append(number)
    ordered = sorted(numbers.items(), key=_by)[:MAX_MODULES]
    return [Place(len(path), path[-1] if path else "model", found) for path, found in ordered]


def _path(incident: Incident) -> tuple[str, ...] | None:
    finding = incident.first
    name = finding.name if finding.origin in ("parameter", "buffer") else finding.module
    if name is None:
        return None
    parts = name.split(".") if name else []
    return (*parts[: MAX_DEPTH - 1], ".".join(parts[MAX_DEPTH - 1 :])) if len(parts) > MAX_DEPTH else tuple(parts)


def _by(item: tuple[tuple[str, ...], list[int]]) -> list[tuple[int, str]]:
    """Sorts numbers as numbers: layer 9 before layer 10."""
    return [(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else -1, part) for part in item[0]]
