"""Shows findings on a terminal: in colour, wrapped at its width, with the user's source line.

Files and pipes get plain text: ``str(finding)``. This is the same text, laid out.
"""

from __future__ import annotations

import linecache
import os
import shutil
import textwrap
import time
from collections.abc import Callable
from typing import TextIO

from torchnan.config.text import printable
from torchnan.detection import introspection, report_rows
from torchnan.detection.finding import Finding

_INDENT = " " * 12  # of values, under their label
_NARROWEST = 40
_MAX_SOURCE = 400  # bytes of a source line
_START = time.time()  # time of the first detection: this module is imported with it

_RESET, _BOLD, _DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
_TITLES = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[1m"}
_VALUES = {"made by": _BOLD, "because": "\x1b[33m", "stack": _DIM, "forward": _DIM}


def wants_color(stream: TextIO | None) -> bool:
    """Whether a stream has colours: a terminal that is not dumb, unless NO_COLOR or FORCE_COLOR says otherwise."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


Paint = Callable[[str], str]


def dimmed(text: str) -> str:
    return _paint(text, _DIM)


def width() -> int:
    """Returns the number of columns: of the terminal, or COLUMNS."""
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def layout(finding: Finding, *, columns: int, with_source: bool) -> str:
    """Returns the report of a finding in colour.

    Args:
        columns: width that no line exceeds, unless a single word is longer.
        with_source: show the source line that made the value. Only for a finding of this process: a log may name any
            file.
    """
    report = str(finding)
    lines = [_paint(report.partition("\n")[0], _TITLES[finding.level])]
    label = ""
    for row in report_rows.rows(report):
        label = row.label or label
        wrapped = textwrap.wrap(row.value, columns - len(_INDENT), break_long_words=False, break_on_hyphens=False)
        for i, part in enumerate(wrapped or [""]):
            left = f"  {_paint(f'{row.label:<9}', _DIM)} " if i == 0 else _INDENT
            lines.append(left + _paint(part, _VALUES.get(label, "")))
        if label == "made by" and with_source:
            lines += _source(finding, columns)
    return "\n".join(lines)


def _source(finding: Finding, columns: int) -> list[str]:
    """Returns the user's source line with the call underlined, if known."""
    if finding.file is None or finding.line is None:
        return []
    if _is_edited(finding.file):
        return []
    try:
        raw = linecache.getline(finding.file, finding.line).rstrip()
    except ValueError:  # a name that cannot be a file
        return []
    text = printable(raw.lstrip(), _MAX_SOURCE)
    if not text:
        return []
    gutter = f"{_INDENT}{_paint(f'{finding.line} |', _DIM)} "
    room = columns - len(_INDENT) - len(f"{finding.line} | ")
    frame = finding.stack[0]
    span = introspection.columns_of((frame.file, frame.line, frame.function))
    if span is None or not raw.isascii() or text != raw.lstrip():  # columns are bytes of the unchanged line
        return [gutter + text[:room]]
    start, end = (column - (len(raw) - len(text)) for column in span)
    hidden = min(start, max(0, end - room))  # cut at the beginning, so that the call is visible
    shown = text[hidden : hidden + room]
    underline = (" " * (start - hidden) + "^" * (end - start))[:room]
    margin = f"{_INDENT}{' ' * len(str(finding.line))} {_paint('|', _DIM)} "
    return [gutter + shown, margin + _paint(underline, _TITLES["error"])]


def _is_edited(file: str) -> bool:
    """Returns whether a file has been written since the program began: its lines are no longer those that run."""
    try:
        return os.stat(file).st_mtime > _START
    except (OSError, ValueError):  # not a file: the lines of a notebook cell are elsewhere
        return False


def _paint(text: str, style: str) -> str:
    return f"{style}{text}{_RESET}" if style and text else text
