"""Writes the page of a log of findings, or of the logs of several ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from torchnan.config.text import counted, printable
from torchnan.detection import report_rows
from torchnan.detection.finding import Finding
from torchnan.distributed.incidents import Incident, Story, name_ranks
from torchnan.pages.lineage_graph import fit, graph
from torchnan.pages.module_tree import module_tree
from torchnan.pages.template import render_page
from torchnan.pages.timeline import timelines

MAX_LOGS = 4
MAX_IN_FULL = 20
MAX_IN_A_LINE = 500


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
