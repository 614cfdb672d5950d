"""The kinds of log that torchnan writes, recognized by their first line."""

from __future__ import annotations

import re
from typing import Literal

LogKind = Literal["findings", "recovery", "run"]

NAMES: dict[LogKind, str] = {
    "findings": "a log of findings",
    "recovery": "the log of a StepGuard",
    "run": "the log of a Monitor",
}

_STARTS: dict[LogKind, re.Pattern[bytes]] = {
    "findings": re.compile(rb'\s*\{"schema": ?\d+, ?"level"'),
    "recovery": re.compile(rb'\s*\{"time": ?[\d.]+, ?"kind"'),
    "run": re.compile(rb'\s*\{"torchnan": ?"run"'),
}


def of(start: bytes) -> LogKind | None:
    """Returns the kind of log that begins like this, ``None`` if it is not one of torchnan's."""
    return next((kind for kind, pattern in _STARTS.items() if pattern.match(start)), None)
