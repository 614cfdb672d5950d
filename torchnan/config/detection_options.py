"""The options of detection for keywords, environment and command line: the core's table, and values for it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torchnan import _load  # not its _C: `import torch` may call startup before the core is loaded
from torchnan.config.options import (
    Option,
    OptionError,
    integer_from,
    parse_bool,
    parse_int,
    unknown_option,
    warn_deprecated,
)

# Removed in the release after 0.1: both set rescan_every.
OLD_NAMES = {
    "exact": Option(False, "True or False", lambda v: isinstance(v, bool), parse_bool, "1, 0, true or false"),
    "sample": Option(0, "0, or a number of steps", integer_from(0), parse_int, "0, or a number of steps"),
}


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip(" ") for part in text.split(","))


# By type of the default. Other options take the text itself.
_PARSERS: dict[type, Any] = {bool: parse_bool, int: parse_int, tuple: _parse_names}


def with_new_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with ``exact=True`` as ``rescan_every=1`` and ``sample=N`` as ``rescan_every=N``.

    Raises:
        OptionError: an old name has an invalid value, or stands beside another name for the same option.
    """
    new = {name: value for name, value in given.items() if name not in OLD_NAMES}
    for name, option in OLD_NAMES.items():
        if name not in given:
            continue
        value = given[name]
        option.require(name, value)
        warn_deprecated(f"the option {name} is now called rescan_every: 1 scans every result, N each once in N steps.")
        if not value:
            continue
        if "rescan_every" in new:
            raise OptionError(f"{name}={value!r} is an old name for rescan_every: give rescan_every alone.")
        new["rescan_every"] = int(value)
    return new


@dataclasses.dataclass(frozen=True)
class DetectionOptions:
    """Valid options of a detection session; :class:`torchnan.detect` describes them.

    Attributes:
        values: a value for every option, by name. Paths are absolute.
    """

    values: Mapping[str, Any]

    def with_log(self, path: str) -> DetectionOptions:
        """Returns these options with another log."""
        return DetectionOptions(MappingProxyType({**self.values, "log": path}))

    @staticmethod
    @functools.cache
    def options() -> Mapping[str, Option]:
        """Returns the core's table: the options by name."""
        return MappingProxyType({row["name"]: _option(**row) for row in _load._C.option_table()})

    @classmethod
    def option(cls, name: str) -> Option:
        """Returns the option with that name, also an old name.

        Raises:
            OptionError: there is none.
        """
        table = cls.options()
        if name not in table and name not in OLD_NAMES:
            raise OptionError(unknown_option(name, table))
        return OLD_NAMES[name] if name in OLD_NAMES else table[name]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> DetectionOptions:
        """Returns options from names and values, also from old names. An option that is not given has its default.

        Raises:
            OptionError: a name or a value is invalid.
        """
        new = with_new_names(given)
        for name, value in new.items():
            cls.option(str(name)).require(name, value)
        return cls.from_checked(new)

    @classmethod
    def from_checked(cls, given: Mapping[str, Any]) -> DetectionOptions:
        """Returns options from values that have been checked one by one.

        Raises:
            OptionError: they contradict each other.
        """
        values = {name: _frozen(given.get(name, option.default), option) for name, option in cls.options().items()}
        for contradiction in _load._C.option_contradictions(values):
            raise OptionError(contradiction)
        if values["log"] is not None:
            values["log"] = os.path.abspath(values["log"])
        return cls(MappingProxyType(values))


def _frozen(value: Any, option: Option) -> Any:
    """Returns a value that the program cannot change any more."""
    return tuple(value) if isinstance(option.default, tuple) else value


def _option(name: str, default: Any, **facts: Any) -> Option:
    check = functools.partial(_load._C.accepts_option, name)
    return Option(default, check=check, parse=_PARSERS.get(type(default), str), **facts)
