"""Makes text from user code (names, paths, values, error messages) safe to show and to store."""

from __future__ import annotations

import contextlib
import reprlib
import sys
from typing import Any

from torchnan import _load  # not its _C: `import torch` may call startup before the core is loaded

MAX_MESSAGE_BYTES = 2000  # bytes of an error message


def printable(text: str, limit: int = 400) -> str:
    """Returns a line for a terminal: escapes for invisible characters, cut at ``limit`` bytes with ``...``."""
    return str(_load._C.printable(text, limit))


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun: "1 line", "1,234 lines"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def say(text: str) -> None:
    """Prints a line of torchnan to stderr, if stderr can be written."""
    with contextlib.suppress(OSError, ValueError):  # closed, or a pipe without a reader
        if sys.stderr is not None:
            print(f"torchnan: {printable(text, MAX_MESSAGE_BYTES)}", file=sys.stderr)


def command_line(*words: str) -> str:
    """Returns a torchnan command with its arguments, quoted for a shell."""
    import shlex  # few programs need it

    return printable(shlex.join(("torchnan", *words)), MAX_MESSAGE_BYTES)


def to_valid_utf8(text: str, limit: int = 1000) -> str:
    """Returns text for JSON: escapes invalid Unicode, cut at ``limit`` bytes with ``...``."""
    return str(_load._C.to_valid_utf8(text, limit))


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to convert thousands of digits to decimals
        return str(x) if abs(x) < 2**64 else f"{hex(x)[:20]}..."


_brief = _Brief()


def brief(value: Any) -> str:
    """Returns the ``repr()`` of any value, cut, for messages that quote the value."""
    return printable(_brief.repr(value), 200)


def type_name(value: Any) -> str:
    """Returns the name of a value's type."""
    return printable(type(value).__name__, 200)
