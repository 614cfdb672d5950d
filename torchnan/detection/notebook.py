"""Reports for notebooks: HTML without scripts, readable on light and on dark background."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html import escape

from torchnan.detection import report_rows

_PLACE = re.compile(r'(\x1b\[[\d;]*m)?([^\s("\x1b]+\.py)(?=:\d|", line \d)')  # in a report or traceback, also coloured
_BOX = "border-left:4px solid #c8322b;padding:2px 0 2px 12px;margin:4px 0"
_TABLE = "border-collapse:collapse;font-family:monospace;font-size:12.5px;margin:4px 0"
_CELL = "text-align:left;vertical-align:top;border:none;padding:0 14px 0 0;background:none"
_LABEL = f"{_CELL};opacity:.65;white-space:nowrap"
_VALUE = f"{_CELL};white-space:pre-wrap;overflow-wrap:anywhere"


def html_of_report(report: str) -> str:
    """Returns the report of a finding."""
    report = with_cells(report)
    rows = "".join(
        f'<tr><td style="{_LABEL}">{escape(row.label)}</td><td style="{_VALUE}">{_value(row)}</td></tr>'
        for row in report_rows.rows(report)
    )
    title = escape(report_rows.title(report))
    return f'<div style="{_BOX}"><b>torchnan: {title}</b><table style="{_TABLE}">{rows}</table></div>'


def html_of_session(state: str, reports: Sequence[str]) -> str:
    """Returns a session as HTML: its state, the first report in full, the others in a line each.

    Args:
        state: one line.
        reports: of the findings, the most serious first.
    """
    first = html_of_report(reports[0]) if reports else ""
    items = "".join(f"<li>{escape(report_rows.summary(with_cells(report)))}</li>" for report in reports[1:])
    more = f"<details><summary>{len(reports) - 1} more</summary><ul>{items}</ul></details>" if items else ""
    return f"<div><code>{escape(state)}</code>{first}{more}</div>"


def with_cells(report: str) -> str:
    """Returns a report or a traceback with cells in the numbering of the notebook, ``Cell In[2]:4``."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return report
    cell = shell.compile.format_code_name
    return _PLACE.sub(lambda place: (place[1] or "") + " ".join(cell(place[2]) or [place[2]]), report)


def _value(row: report_rows.Row) -> str:
    text = escape(row.value)
    return f"<b>{text}</b>" if row.label in ("made by", "because") else text
