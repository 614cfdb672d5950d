"""The options of detection: one table for keywords, environment and command line. C++ has the same in options.h."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchnan.config.options import (
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

ACTIONS = ("raise", "warn", "log", "breakpoint")
WHENS = ("harm", "origin")


def _is_operator_pattern(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_:*?\[\]!^-]+", value) is not None


def _is_operator_patterns(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_is_operator_pattern, value))


def _bool(default: bool) -> Any:
    return setting(default, "True or False", lambda v: isinstance(v, bool), parse_bool, "1, 0, true or false")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectionOptions(Settings):
    """The options of a detection session; :class:`torchnan.detect` says what they are.

    Raises:
        OptionError: an option that cannot be used.
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
    exact: bool = _bool(False)
    sample: int = setting(0, "0, or a number of steps", integer_from(0), parse_int)
    headroom: bool = _bool(False)
    max_findings: int = nonnegative_int(100, minimum=1)
    log: str | Path | None = setting(
        None, "a path, or None", lambda value: value is None or is_path(value), accepts_text="a path"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.check_nan and not self.check_inf:
            raise OptionError("check_nan and check_inf are both False: nothing would be looked for.")
        if self.exact and self.sample:
            raise OptionError("exact=True reads every result: there is nothing left for sample to add.")
        object.__setattr__(self, "skip_ops", tuple(self.skip_ops))
        if self.log is not None:
            object.__setattr__(self, "log", os.path.abspath(self.log))

    def as_keywords(self) -> dict[str, Any]:
        """Returns the options by name, as the core and :func:`torchnan.set_detect` take them."""
        return {name: getattr(self, name) for name in self.options()}
