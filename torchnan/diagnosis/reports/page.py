"""Writes a self-contained HTML page: no script, no network, no font, no external image."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from torchnan.config.text import printable
from torchnan.diagnosis.formatting import describe_confidence, display_name
from torchnan.diagnosis.reports import terminal
from torchnan.diagnosis.reports.panels import panels
from torchnan.diagnosis.run import Run
from torchnan.diagnosis.thresholds import Thresholds
from torchnan.diagnosis.verdict import Diagnosis

MAX_VERDICTS = 10
MAX_QUESTIONS = 60


def html(run: Run, found: Diagnosis, thresholds: Thresholds) -> str:
    """Returns the page. Its content security policy allows only its own style, by hash, so that names cannot inject
    any.
    """
    style = _resource("page.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page: str = template("page.html.j2", escape=True).render(
        style=style,
        style_hash=f"sha256-{digest}",
        run=run,
        found=found,
        about=terminal.describe_run(run),
        headline=terminal.headline(found),
        panels=panels(run, found, thresholds),
        verdicts=found.verdicts[:MAX_VERDICTS],
        more=len(found.verdicts) - MAX_VERDICTS,
        questions=found.walk[:MAX_QUESTIONS],
    )
    return page


def template(name: str, *, escape: bool) -> Any:
    """Returns a Jinja template. Text is made printable, and escaped for HTML if ``escape``.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise ImportError("this needs jinja2: pip install torchnan[diagnose]") from None
    environment = jinja2.Environment(
        autoescape=escape, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        visible=lambda text: printable(str(text)),
        display_name=display_name,
        describe_confidence=describe_confidence,
        format_evidence=format_evidence,
    )
    return environment.from_string(_resource(name))


def format_evidence(value: Any) -> str:
    """Formats a value of the evidence."""
    return f"{value:,.5g}" if isinstance(value, float) else printable(str(value))


def _resource(name: str) -> str:
    return (files("torchnan.diagnosis.reports") / name).read_text(encoding="utf-8")
