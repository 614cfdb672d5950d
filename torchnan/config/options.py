"""Options that a user sets in keywords, a dictionary, TOML, the environment or as NAME=VALUE, and tables of them."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, TypeVar

from torchnan.config.text import MAX_MESSAGE_BYTES, brief, printable

_Table = TypeVar("_Table", bound="Settings")


class OptionError(ValueError):
    """An option cannot be used. Raised before anything takes effect."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, MAX_MESSAGE_BYTES))


def warn_deprecated(text: str) -> None:
    """Warns at the line of the program that uses a deprecated name, however deep in torchnan this is found.

    Such names work until the release after the one that deprecates them.
    """
    level = 1
    frame: FrameType | None = sys._getframe(0)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torchnan":
        level, frame = level + 1, frame.f_back
    warnings.warn(f"torchnan: {text}", DeprecationWarning, stacklevel=level)


@dataclasses.dataclass(frozen=True)
class Option:
    """Describes an option.

    Attributes:
        default: the value if none is given.
        accepts: the valid values, in words.
        check: returns whether a value is valid.
        parse: reads a value from text; raises KeyError or ValueError for invalid text.
        accepts_text: the valid texts, in words.
        meaning: what the option does, in reStructuredText.
        names: the words that it accepts, if it accepts only words.
    """

    default: Any
    accepts: str
    check: Callable[[Any], bool]
    parse: Callable[[str], Any]
    accepts_text: str
    meaning: str = ""
    names: tuple[str, ...] = ()

    def require(self, name: str, value: Any) -> None:
        """Checks a value that was given under a name.

        Raises:
            OptionError: the value is invalid.
        """
        if not self.check(value):
            raise OptionError(f"{name}={brief(value)} cannot be used: {name} takes {self.accepts}.")


def parse_bool(text: str) -> bool:
    """Returns True for ``1`` and ``true``, False for ``0`` and ``false``, ignoring case."""
    values = {"1": True, "true": True, "0": False, "false": False}
    return values[text.lower()]


def parse_int(text: str) -> int:
    """Returns an integer of ASCII digits: ``int()`` would also accept spaces, underscores and digits of every
    script."""
    if not re.fullmatch("-?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def parse_float(text: str) -> float:
    """Returns a finite decimal number: ``float()`` would also accept ``nan`` and ``inf``."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise ValueError(text)
    return float(text)


def one_of(*values: str) -> Callable[[Any], bool]:
    """Returns a check for one of these strings. Other types are not compared, because their ``==`` may run any code."""
    return lambda value: isinstance(value, str) and value in values


def integer_from(minimum: int) -> Callable[[Any], bool]:
    """Returns a check for 64-bit integers of at least ``minimum``, without True and False."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and minimum <= value < 2**63


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number, and not True or False."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_path(value: Any) -> bool:
    """Returns whether a value can be the path of a file."""
    if not isinstance(value, str | Path) or "\0" in str(value) or not str(value).strip(" \t\n\r\f\v"):
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def read(setting: str, option: Option, text: str) -> Any:
    """Returns the value of the text of a variable or an argument.

    Args:
        setting: the part before the text, ``TORCHNAN_WHEN=`` or ``--when ``.
        option: the option to set.
        text: the text of its value.

    Raises:
        OptionError: the text is not a valid value of the option.
    """
    try:
        value = option.parse(text)
        usable = option.check(value)
    except (KeyError, ValueError):
        usable = False
    if not usable:
        raise OptionError(f"{setting}{printable(text, 200)} cannot be used: it takes {option.accepts_text}.")
    return value


def message_of(error: Exception) -> str:
    """Returns the message of an error; for an OSError without its number, but with its file."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def suggest(name: str, names: Iterable[str]) -> str:
    """Returns a sentence with the most similar name, ``""`` if no name is similar."""
    import difflib

    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean '{lower[close[0]]}'?" if close else ""


def unknown_option(name: str, known: Iterable[str], topic: str = "") -> str:
    """Returns the error for an unknown option, with the closest match and all valid names."""
    names = list(known)
    of_topic = f" of {topic}" if topic else ""
    return f"there is no option '{printable(name, 100)}'{of_topic}.{suggest(name, names)} Options: {', '.join(names)}."


def setting(
    default: Any, accepts: str, check: Callable[[Any], bool], parse: Callable[[str], Any] = str, accepts_text: str = ""
) -> Any:
    """Returns a field with the attributes of :class:`Option`. ``accepts_text`` is ``accepts`` by default."""
    option = Option(default, accepts, check, parse, accepts_text or accepts)
    return dataclasses.field(default=default, metadata={"option": option})


def nonnegative_int(default: int, *, minimum: int = 0) -> Any:
    """Returns a field: an integer of at least ``minimum``."""
    return setting(default, f"an integer of at least {minimum}", integer_from(minimum), parse_int)


def greater_than(default: float, bound: float) -> Any:
    """Returns a field: a finite number above ``bound``."""
    return setting(default, f"a number above {bound:g}", lambda v: is_number(v) and v > bound, parse_float)


def switch(default: bool) -> Any:
    """Returns a field: true or false."""
    return setting(default, "true or false", lambda v: isinstance(v, bool), parse_bool)


class Settings:
    """Base of a frozen dataclass whose fields are made by :func:`setting`.

    Raises:
        OptionError: a name or a value is invalid.
    """

    TOPIC: ClassVar[str] = ""  # the name of the table in errors
    OLD_NAMES: ClassVar[Mapping[str, str]] = {}  # deprecated names of options, with the new ones

    def __post_init__(self) -> None:
        for name, option in self.options().items():
            option.require(name, getattr(self, name))

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Returns the options by name."""
        return {field.name: field.metadata["option"] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls: type[_Table], given: Mapping[str, Any]) -> _Table:
        """Returns settings from names and values.

        Raises:
            OptionError: a name or a value is invalid.
        """
        new = cls.with_new_names(given)
        for name in new:
            cls.option(str(name))
        return cls(**new)

    @classmethod
    def with_new_names(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns names and values with new names in place of deprecated ones, and warns about these.

        Raises:
            OptionError: an option stands there under both names.
        """
        new = dict(given)
        for old in filter(cls.OLD_NAMES.__contains__, given):
            name = cls.OLD_NAMES[old]
            if name in given:
                raise OptionError(f"{old}={brief(given[old])} is an old name for {name}: give {name} alone.")
            warn_deprecated(f"the option {old} of {cls.TOPIC} is now called {name}.")
            new[name] = new.pop(old)
        return new

    @classmethod
    def option(cls, name: str) -> Option:
        """Returns the option with that name.

        Raises:
            OptionError: there is none.
        """
        table = cls.options()
        if name not in table:
            raise OptionError(unknown_option(name, table, cls.TOPIC))
        return table[name]

    @classmethod
    def from_toml(cls: type[_Table], path: str | os.PathLike[str], table: str = "") -> _Table:
        """Returns settings from a TOML file.

        Args:
            path: the file.
            table: one of its tables, ``"train.recovery"``. Default: the whole file.

        Raises:
            OptionError: the file is not TOML, or has an invalid name or value.
            OSError: the file cannot be read.
        """
        given = _toml(path)
        for part in filter(None, table.split(".")):
            if not isinstance(given, dict) or part not in given:
                raise OptionError(f"{os.fspath(path)} has no table '{table}'.")
            given = given[part]
        if not isinstance(given, dict):
            raise OptionError(f"{os.fspath(path)} has no table '{table}'.")
        try:
            return cls.from_dict(given)
        except OptionError as error:
            raise OptionError(f"{os.fspath(path)}: {error}") from None


def takes_old_names(table: type[_Table]) -> type[_Table]:
    """Makes the constructor of a table take the names in its ``OLD_NAMES`` as well."""
    init: Any = table.__init__

    @functools.wraps(init)
    def with_new_names(self: _Table, **given: Any) -> None:
        init(self, **table.with_new_names(given))

    table.__init__ = with_new_names  # type: ignore[method-assign, assignment]
    return table


def _toml(path: str | os.PathLike[str]) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found]
    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except (ValueError, RecursionError) as error:  # not UTF-8, or a number of 5,000 digits
            raise OptionError(f"{os.fspath(path)} is not TOML: {error}.") from None
