"""Text from user code (names, paths, values, error messages), made safe to show and to store."""

from __future__ import annotations

import contextlib
import reprlib
import sys
from typing import Any

from torchnan import _load  # and not its _C: `import torch` may call startup before the core is loaded

MAX_MESSAGE_BYTES = 2000  # bytes of an error's text


def printable(text: str, limit: int = 400) -> str:
    """Returns a line for a terminal: escapes for invisible characters, cut at ``limit`` bytes with ``...``."""
    return str(_load._C.printable(text, limit))


def say(text: str) -> None:
    """Prints a line of torchnan's own to stderr, if there is anybody to read it."""
    with contextlib.suppress(OSError, ValueError):  # closed, or a pipe that nobody reads
        if sys.stderr is not None:
            print(f"torchnan: {printable(text, MAX_MESSAGE_BYTES)}", file=sys.stderr)


def command_line(*words: str) -> str:
    """Returns a command of torchnan's with its arguments, as it can be pasted into a shell."""
    import shlex  # which few programs need

    return printable(shlex.join(("torchnan", *words)), MAX_MESSAGE_BYTES)


def to_valid_utf8(text: str, limit: int = 1000) -> str:
    """Returns text for JSON: escapes for what is no Unicode, cut at ``limit`` bytes with ``...``."""
    return str(_load._C.to_valid_utf8(text, limit))


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200

    def repr_int(self, x: int, level: int) -> str:
        return str(x) if abs(x) < 2**64 else f"{hex(x)[:20]}..."  # of thousands of digits Python makes no decimals


_brief = _Brief()


def brief(value: Any) -> str:
    """Returns the ``repr()`` of any value, cut, as a message about the value quotes it."""
    return printable(_brief.repr(value), 200)


def type_name(value: Any) -> str:
    """Returns the name of a value's type."""
    return printable(type(value).__name__, 200)
