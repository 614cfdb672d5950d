"""Words of the program's (names, paths, values, messages of its errors) as they may be shown or stored."""

from __future__ import annotations

import reprlib
from typing import Any

from torchnan import _load  # and not its _C: `import torch` may call startup before the core is loaded

LONGEST_MESSAGE = 2000  # bytes of an error's text


def printable(text: str, limit: int = 400) -> str:
    """For a terminal, in one line: what is no visible character is an escape; cut at ``limit`` bytes with ``...``."""
    return str(_load._C.printable(text, limit))


def storable(text: str, limit: int = 1000) -> str:
    """For JSON: the text itself, escapes for what is no Unicode; cut at ``limit`` bytes with ``...``."""
    return str(_load._C.to_valid_utf8(text, limit))


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200

    def repr_int(self, x: int, level: int) -> str:
        return str(x) if abs(x) < 2**64 else f"{hex(x)[:20]}..."  # of thousands of digits Python makes no decimals


_brief = _Brief()


def shown(value: Any) -> str:
    """Any value, in a few words, in a message that says it cannot be used."""
    return printable(_brief.repr(value), 200)


def type_name(value: Any) -> str:
    """What a value is."""
    return printable(type(value).__name__, 200)
