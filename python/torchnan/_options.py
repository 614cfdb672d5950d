"""The options of a detection: one table for keywords and environment. The C++ side has the same names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ACTIONS = ("raise", "warn", "log")
WHENS = ("harm", "origin")


class OptionError(ValueError):
    """An option that cannot be used. Nothing has been switched on."""


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


def _is_names(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(isinstance(name, str) and name for name in value)


def _is_path(value: Any) -> bool:
    return value is None or (isinstance(value, str | Path) and str(value) != "")


_BOOL = ("True or False", lambda value: isinstance(value, bool), parse_bool, "1, 0, true or false")

TABLE: dict[str, Option] = {
    "action": Option(
        "raise",
        "'raise', 'warn', 'log' or a callable that takes a Finding",
        lambda value: callable(value) or value in ACTIONS,
        str,
        "raise, warn or log",
    ),
    "check_nan": Option(True, *_BOOL),
    "check_inf": Option(True, *_BOOL),
    "when": Option("harm", "'harm' or 'origin'", lambda value: value in WHENS, str, "harm or origin"),
    "backward": Option(True, *_BOOL),
    "stacks": Option(True, *_BOOL),
    "skip_ops": Option(
        (),
        "a sequence of operator names or globs, such as ('aten::log', '_foreach_*')",
        _is_names,
        lambda text: tuple(part.strip() for part in text.split(",")),
        "names or globs with commas between them, such as aten::log,_foreach_*",
    ),
    "exact": Option(False, *_BOOL),
    "sample": Option(
        0,
        "0, or a number of steps",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63,
        int,
        "0, or a number of steps",
    ),
    "max_findings": Option(
        100,
        "an integer of at least 1",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63,
        int,
        "an integer of at least 1",
    ),
    "log": Option(None, "a path, or None", _is_path, str, "a path"),
}


def check(given: dict[str, Any]) -> dict[str, Any]:
    """The full set of options, with defaults filled in.

    Raises:
        OptionError: a name or a value that cannot be used.
    """
    for name, value in given.items():
        if name not in TABLE:
            raise OptionError(f"there is no option '{name}'.{nearest(name, TABLE)} Options: {', '.join(TABLE)}.")
        if not TABLE[name].check(value):
            raise OptionError(f"{name}={value!r} cannot be used: {name} takes {TABLE[name].accepts}.")
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
        raise OptionError(f"{variable}={text} cannot be used: it takes {option.accepts_text}.")
    return value


def message_of(error: Exception) -> str:
    """What an error of switching on says, without the number that an OSError puts in front."""
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)


def nearest(name: str, names: Any) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
