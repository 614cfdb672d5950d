"""The options of a detection: one table for keywords and environment. The C++ side has the same names."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchnan.config.text import LONGEST_MESSAGE, printable, shown

ACTIONS = ("raise", "warn", "log")
WHENS = ("harm", "origin")


class OptionError(ValueError):
    """An option that cannot be used. Nothing has been switched on."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, LONGEST_MESSAGE))


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: its default, a check of the value, and how it is read from text."""

    default: Any
    accepts: str
    check: Callable[[Any], bool]
    parse: Callable[[str], Any]
    accepts_text: str = ""  # in the environment


def parse_bool(text: str) -> bool:
    values = {"1": True, "true": True, "0": False, "false": False}
    return values[text.lower()]


def parse_int(text: str) -> int:
    """ASCII digits alone: ``int()`` also takes spaces, underscores and the digits of every script."""
    if not re.fullmatch("-?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def parse_float(text: str) -> float:
    """The same for ``float()``, which also takes ``nan`` and ``inf``."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise ValueError(text)
    return float(text)


def one_of(*values: str) -> Callable[[Any], bool]:
    """A check: equal to one of these, and a string; what a comparison with anything else does, nobody knows."""
    return lambda value: isinstance(value, str) and value in values


def count_from(least: int) -> Callable[[Any], bool]:
    """A check: an integer that the core can hold, and not True or False."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def is_path(value: Any) -> bool:
    """Whether it can be the path of a file."""
    if not isinstance(value, str | Path) or "\0" in str(value) or not str(value).strip(" \t\n\r\f\v"):
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _is_pattern(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_:*?\[\]!^-]+", value) is not None


def _is_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_is_pattern, value))


_BOOL = ("True or False", lambda value: isinstance(value, bool), parse_bool, "1, 0, true or false")

TABLE: dict[str, Option] = {
    "action": Option(
        "raise",
        "'raise', 'warn', 'log' or a callable that takes a Finding",
        lambda value: callable(value) or one_of(*ACTIONS)(value),
        str,
        "raise, warn or log",
    ),
    "check_nan": Option(True, *_BOOL),
    "check_inf": Option(True, *_BOOL),
    "when": Option("harm", "'harm' or 'origin'", one_of(*WHENS), str, "harm or origin"),
    "backward": Option(True, *_BOOL),
    "stacks": Option(True, *_BOOL),
    "skip_ops": Option(
        (),
        "a sequence of operator names without overload, or globs, such as ('aten::log', '_foreach_*')",
        _is_names,
        lambda text: tuple(part.strip(" ") for part in text.split(",")),
        "operator names without overload, or globs, with commas between them, such as aten::log,_foreach_*",
    ),
    "exact": Option(False, *_BOOL),
    "sample": Option(
        0,
        "0, or a number of steps",
        count_from(0),
        parse_int,
        "0, or a number of steps",
    ),
    "headroom": Option(False, *_BOOL),
    "max_findings": Option(
        100,
        "an integer of at least 1",
        count_from(1),
        parse_int,
        "an integer of at least 1",
    ),
    "log": Option(None, "a path, or None", lambda value: value is None or is_path(value), str, "a path"),
}


def check(given: dict[str, Any]) -> dict[str, Any]:
    """The full set of options, with defaults filled in.

    Raises:
        OptionError: a name or a value that cannot be used.
    """
    for name, value in given.items():
        if name not in TABLE:
            raise OptionError(
                f"there is no option '{printable(name, 100)}'.{suggest(name, TABLE)} Options: {', '.join(TABLE)}."
            )
        if not TABLE[name].check(value):
            raise OptionError(f"{name}={shown(value)} cannot be used: {name} takes {TABLE[name].accepts}.")
    options = {name: given.get(name, option.default) for name, option in TABLE.items()}
    if not options["check_nan"] and not options["check_inf"]:
        raise OptionError("check_nan and check_inf are both False: nothing would be looked for.")
    if options["exact"] and options["sample"]:
        raise OptionError("exact=True reads every result: there is nothing left for sample to add.")
    options["skip_ops"] = tuple(options["skip_ops"])
    if options["log"] is not None:
        options["log"] = os.path.abspath(options["log"])
    return options


def read(variable: str, option: Option, text: str) -> Any:
    """The value that an environment variable stands for.

    Raises:
        OptionError: it stands for none that the option takes.
    """
    try:
        value = option.parse(text)
        usable = option.check(value)
    except (KeyError, ValueError):
        usable = False
    if not usable:
        raise OptionError(f"{variable}={printable(text, 200)} cannot be used: it takes {option.accepts_text}.")
    return value


def message_of(error: Exception) -> str:
    """What an error says, without the number that an OSError puts in front; with the file that it is about."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def suggest(name: str, names: Any) -> str:
    import difflib

    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean '{lower[close[0]]}'?" if close else ""
