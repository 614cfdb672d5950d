"""Writes the page of a diagnosis."""

from __future__ import annotations

from typing import Any

from torchnan.config.text import printable
from torchnan.pages.template import Filters, render_page
from torchnan.training.diagnosis.formatting import describe_confidence, describe_steps, display_name
from torchnan.training.diagnosis.reports import terminal
from torchnan.training.diagnosis.reports.panels import panels
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Diagnosis

PACKAGE = "torchnan.training.diagnosis.reports"
MAX_VERDICTS = 10
MAX_QUESTIONS = 60


def html(run: Run, found: Diagnosis, thresholds: Thresholds) -> str:
    """Returns the page.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    return render_page(
        PACKAGE,
        "diagnosis.html.j2",
        filters=FILTERS,
        run=run,
        found=found,
        about=terminal.describe_run(run),
        headline=terminal.headline(found),
        panels=panels(run, found, thresholds),
        verdicts=found.verdicts[:MAX_VERDICTS],
        more=len(found.verdicts) - MAX_VERDICTS,
        questions=found.walk[:MAX_QUESTIONS],
    )


def format_evidence(value: Any) -> str:
    """Formats a value of the evidence."""
    return f"{value:,.5g}" if isinstance(value, float) else printable(str(value))


FILTERS: Filters = {
    "display_name": display_name,
    "describe_confidence": describe_confidence,
    "describe_steps": describe_steps,
    "format_evidence": format_evidence,
}
