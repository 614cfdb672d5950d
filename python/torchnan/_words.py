"""Words of the program's (names, paths, values, messages of its errors) as they may be shown or stored."""

from __future__ import annotations

import sys
from typing import Any

LONGEST_MESSAGE = 2000  # bytes of an error's text


def _core() -> Any:
    """There when something is to be told, and not when this is imported; reading a capture imports nothing."""
    return sys.modules["torchnan._load"]._C


def printable(text: str, limit: int = 400) -> str:
    """For a terminal, in one line: what is no visible character is an escape; cut at ``limit`` bytes with ``...``."""
    return str(_core().printable(text, limit))


def storable(text: str, limit: int = 1000) -> str:
    """For JSON: the text itself, escapes for what is no Unicode; cut at ``limit`` bytes with ``...``."""
    return str(_core().storable(text, limit))


def shown(value: Any) -> str:
    """A value in a message that says it cannot be used."""
    return printable(repr(value), 200)


def type_name(value: Any) -> str:
    """What a value is."""
    return printable(type(value).__name__, 200)
