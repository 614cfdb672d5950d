"""The options of detection: one table for keywords, environment and command line. options.h has the same in C++."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchnan.config.options import (
    Option,
    OptionError,
    Settings,
    integer_from,
    is_path,
    nonnegative_int,
    one_of,
    parse_bool,
    parse_int,
    setting,
)
from torchnan.config.text import brief

# Removed in the release after 0.1: both set rescan_every.
OLD_NAMES = {
    "exact": Option(False, "True or False", lambda v: isinstance(v, bool), parse_bool, "1, 0, true or false"),
    "sample": Option(0, "0, or a number of steps", integer_from(0), parse_int, "0, or a number of steps"),
}

ACTIONS = ("raise", "warn", "log", "breakpoint")
WHENS = ("harm", "origin")


def _is_operator_pattern(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_:*?\[\]!^-]+", value) is not None


def _is_operator_patterns(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_is_operator_pattern, value))


def _bool(default: bool) -> Any:
    return setting(default, "True or False", lambda v: isinstance(v, bool), parse_bool, "1, 0, true or false")


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
        if not option.check(value):
            raise OptionError(f"{name}={brief(value)} cannot be used: {name} takes {option.accepts}.")
        warnings.warn(
            f"torchnan: the option {name} is now called rescan_every: 1 scans every result, N each once in N steps.",
            DeprecationWarning,
            stacklevel=3,
        )
        if not value:
            continue
        if "rescan_every" in new:
            raise OptionError(f"{name}={value!r} is an old name for rescan_every: give rescan_every alone.")
        new["rescan_every"] = int(value)
    return new


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectionOptions(Settings):
    """The options of a detection session; :class:`torchnan.detect` describes them.

    Raises:
        OptionError: an option has an invalid value.
    """

    action: Any = setting(
        "raise",
        "'raise', 'warn', 'log', 'breakpoint' or a callable that takes a Finding",
        lambda value: callable(value) or one_of(*ACTIONS)(value),
        accepts_text="raise, warn, log or breakpoint",
    )
    check_nan: bool = _bool(True)
    check_inf: bool = _bool(True)
    when: str = setting("harm", "'harm' or 'origin'", one_of(*WHENS), accepts_text="harm or origin")
    backward: bool = _bool(True)
    stacks: bool = _bool(True)
    skip_ops: Sequence[str] = setting(
        (),
        "a sequence of operator names without overload, or globs, such as ('aten::log', '_foreach_*')",
        _is_operator_patterns,
        lambda text: tuple(part.strip(" ") for part in text.split(",")),
        "operator names without overload, or globs, with commas between them, such as aten::log,_foreach_*",
    )
    rescan_every: int = setting(1000, "0, or a number of steps", integer_from(0), parse_int)
    headroom: bool = _bool(False)
    max_findings: int = nonnegative_int(100, minimum=1)
    log: str | Path | None = setting(
        None, "a path, or None", lambda value: value is None or is_path(value), accepts_text="a path"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.check_nan and not self.check_inf:
            raise OptionError("check_nan and check_inf are both False: nothing would be checked.")
        object.__setattr__(self, "skip_ops", tuple(self.skip_ops))
        if self.log is not None:
            object.__setattr__(self, "log", os.path.abspath(self.log))

    @classmethod
    def option(cls, name: str) -> Option:
        """Returns the option with that name, also an old name.

        Raises:
            OptionError: there is none.
        """
        return OLD_NAMES[name] if name in OLD_NAMES else super().option(name)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> DetectionOptions:
        """Returns options from names and values, also from old names.

        Raises:
            OptionError: a name or a value is invalid.
        """
        return super().from_dict(with_new_names(given))

    def as_keywords(self) -> dict[str, Any]:
        """Returns the options by name, as the core and :func:`torchnan.set_detect` take them."""
        return {name: getattr(self, name) for name in self.options()}
