"""Writes a post-mortem document in Markdown, filled in as far as a log allows."""

from __future__ import annotations

import re

from torchnan.config.text import printable
from torchnan.pages.template import template
from torchnan.training.diagnosis.reports import terminal
from torchnan.training.diagnosis.reports.page import FILTERS, MAX_QUESTIONS, MAX_VERDICTS, PACKAGE
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.verdict import Diagnosis


def markdown(run: Run, found: Diagnosis) -> str:
    """Returns the document; names from the run are plain text in it."""
    document = template(PACKAGE, "post_mortem.md.j2", escape=False, filters=FILTERS)
    text: str = document.render(
        found=found,
        about=escape_markdown(terminal.describe_run(run)),
        headline=terminal.headline(found),
        verdicts=found.verdicts[:MAX_VERDICTS],
        questions=found.walk[:MAX_QUESTIONS],
        notes=run.notes,
        escape_markdown=escape_markdown,
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def escape_markdown(text: object) -> str:
    """Escapes characters that Markdown or HTML would interpret."""
    return re.sub(r"([\\`*_{}\[\]<>|#&!~$])", r"\\\1", printable(str(text)))
