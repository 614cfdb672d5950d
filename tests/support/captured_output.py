"""The output of programs and commands: warnings, errors, text, lines of logs."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def as_shown(caught: list[warnings.WarningMessage]) -> list[str]:
    return [warnings.formatwarning(w.message, w.category, w.filename, w.lineno, line="") for w in caught]


def refusals(*attempts: Callable[[], Any]) -> list[str]:
    """The error that each of them raises."""
    said = []
    for attempt in attempts:
        try:
            attempt()
            said.append("(accepted)")
        except Exception as error:  # noqa: BLE001 - any error is returned as text
            said.append(str(error))
    return said


def printed(*attempts: Callable[[], Any]) -> list[str]:
    """The output of each of them, on both streams."""
    said = []
    for attempt in attempts:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
            attempt()
        said.append(out.getvalue())
    return said


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """The messages to torchnan's logger."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torchnan")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def lines_of(path: Path) -> list[str]:
    """The lines of a log; the last one must end like the others."""
    text = path.read_text()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def stored(path: Path) -> list[str]:
    """The documents of a capture."""
    return [(path / name).read_text() for name in ("capture.json", "contents.json")]
