"""Tables of numbers and words that a user sets: in keywords, a dictionary, a TOML file, or as NAME=VALUE."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from torchnan.config.options import Option, OptionError, count_from, parse_bool, parse_float, parse_int, suggest
from torchnan.config.text import printable, shown

_Table = TypeVar("_Table", bound="Settings")


def setting(default: Any, accepts: str, check: Callable[[Any], bool], parse: Callable[[str], Any] = str) -> Any:
    """A field of a table: its default, what it takes in words and as a check, and how it is read from text."""
    return dataclasses.field(default=default, metadata={"option": Option(default, accepts, check, parse, accepts)})


def count(default: int, *, least: int = 0) -> Any:
    """A field: an integer of at least ``least``."""
    return setting(default, f"an integer of at least {least}", count_from(least), parse_int)


def above(default: float, bound: float) -> Any:
    """A field: a finite number above ``bound``."""
    return setting(default, f"a number above {bound:g}", lambda v: is_number(v) and v > bound, parse_float)


def switch(default: bool) -> Any:
    """Returns a field: true or false."""
    return setting(default, "true or false", lambda v: isinstance(v, bool), parse_bool)


def is_number(value: Any) -> bool:
    """A check: finite, and not True or False."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


class Settings:
    """Base of a frozen dataclass whose fields are made by :func:`setting`.

    Raises:
        OptionError: a name or a value that cannot be used.
    """

    TOPIC: ClassVar[str]  # what errors call it

    def __post_init__(self) -> None:
        for name, option in self.options().items():
            if not option.check(getattr(self, name)):
                raise OptionError(f"{name}={shown(getattr(self, name))} cannot be used: {name} takes {option.accepts}.")

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The table."""
        return {field.name: field.metadata["option"] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls: type[_Table], given: Mapping[str, Any]) -> _Table:
        """Of names and values, as a part of a larger configuration has them."""
        for name in given:
            cls.option(str(name))
        return cls(**given)

    @classmethod
    def option(cls, name: str) -> Option:
        """The one of that name."""
        table = cls.options()
        if name not in table:
            known = f"{suggest(name, table)} Options: {', '.join(table)}."
            raise OptionError(f"there is no option '{printable(name, 100)}' of {cls.TOPIC}.{known}")
        return table[name]

    @classmethod
    def from_toml(cls: type[_Table], path: str | os.PathLike[str], table: str = "") -> _Table:
        """Of a TOML file.

        Args:
            path: the file.
            table: which of its tables, ``"train.recovery"``. Default: the whole file is meant.
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


def _toml(path: str | os.PathLike[str]) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found]
    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except (ValueError, RecursionError) as error:  # no UTF-8, a number of 5,000 digits
            raise OptionError(f"{os.fspath(path)} is not TOML: {error}.") from None
