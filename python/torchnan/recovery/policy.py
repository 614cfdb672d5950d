"""What to do about bad steps: one table for keywords, TOML files and the environment."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchnan._environment import POLICY
from torchnan._options import (
    Option,
    OptionError,
    count_from,
    is_path,
    nearest,
    one_of,
    parse_bool,
    parse_float,
    parse_int,
    read,
)
from torchnan._words import printable, shown
from torchnan.recovery.event import ACTIONS, CAUSES, Action


def _field(default: Any, accepts: str, check: Callable[[Any], bool], parse: Callable[[str], Any] = str) -> Any:
    return dataclasses.field(default=default, metadata={"option": Option(default, accepts, check, parse, accepts)})


POSITIVE = "a number above 0, or nothing"


def _count(default: int, *, least: int = 0) -> Any:
    return _field(default, f"an integer of at least {least}", count_from(least), parse_int)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_positive(value: Any) -> bool:
    """A check: None, or a finite number above 0."""
    return value is None or (_is_number(value) and value > 0)


def _positive() -> Any:
    return _field(None, POSITIVE, is_positive, parse_float)


def _one_of(*values: str) -> Any:
    return _field(values[0], f"one of {', '.join(values)}", one_of(*values))


def _path() -> Any:
    return _field(None, "a path, or nothing", lambda v: v is None or is_path(v))


def _switch(default: bool) -> Any:
    return _field(default, "true or false", lambda v: isinstance(v, bool), parse_bool)


def _pairs(text: str) -> dict[str, str]:
    pairs = [tuple(part.strip(" ") for part in pair.split("=")) for pair in text.split(",")]
    if len(dict(pairs)) < len(pairs):  # type: ignore[arg-type]
        raise ValueError(text)
    return dict(pairs)  # type: ignore[arg-type]


_REMEDIES = f"actions ({', '.join(ACTIONS)}) by cause ({', '.join(CAUSES)})"


def _is_remedy(value: Any) -> bool:
    return isinstance(value, Mapping) and all(one_of(*CAUSES)(k) and one_of(*ACTIONS)(v) for k, v in value.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """What is looked for, what is kept, and what is done. Every field can be set in TOML and in the environment.

    Raises:
        OptionError: a name or a value that cannot be used.

    Attributes:
        action: first answer to a bad step: ``"skip"`` it, ``"rollback"``, ``"raise"``.
        max_consecutive: bad steps in a row that are skipped. The next is rolled back if there is a snapshot, else
            training stops.
        max_skips: bad steps skipped in the whole run; then training stops.
        remedy: actions by cause, over the defaults of :data:`REMEDIES`: ``{"data": "skip", "norm": "rollback"}``.
        retries: how often a step that was finite in the replay is run again for good.
        max_norm: gradients are clipped to this 2-norm, with the norm that the check has found.
        norm_limit: a step with a larger gradient norm is bad.
        norm_factor: so is one above this multiple of the rolling mean of the last ``norm_window`` good steps.
        max_scaler_skips: steps in a row that a loss scaler may skip in search of its scale; one more is a bad step.
        replay: run a bad step again, twice, under ``detect()``, to learn its origin.
        keep: batches are kept for that by ``"reference"`` (a step that writes to its batch cannot be replayed) or as a
            ``"copy"``.
        captures: folder for captures of bad steps; at most ``max_captures`` a rank, ``max_capture_bytes`` each.
        snapshot_every: steps between snapshots of model, optimizer, scaler, scheduler, random states. 0: none.
        snapshots: how many are kept.
        snapshot_folder: on disk, in this folder, rather than in memory.
        rollback_depth: 1 goes back to the newest snapshot, 2 to the one before it. A rollback that was not enough
            is followed by one that goes further back.
        max_rollbacks: then training stops.
        rewind_data: a rollback moves the data back, too. Default: it goes on with new data.
        lr_factor: learning rates are multiplied with this after a rollback, and ramped back to 1 over ``lr_ramp``
            good steps.
        out_of_memory: ``"raise"``, or ``"split"``: micro-batches are halved, up to ``max_splits`` times, and the same
            step is run again.
        log: the recovery log, one line of JSON per decision.
    """

    action: str = _one_of("skip", "rollback", "raise")
    max_consecutive: int = _count(5, least=1)
    max_skips: int = _count(100)
    remedy: Mapping[str, Action] = dataclasses.field(
        default_factory=dict,
        metadata={"option": Option({}, _REMEDIES, _is_remedy, _pairs, f"{_REMEDIES}, as data=raise,norm=rollback")},
    )
    retries: int = _count(2)
    max_norm: float | None = _positive()
    norm_limit: float | None = _positive()
    norm_factor: float | None = _positive()
    norm_window: int = _count(100, least=10)
    max_scaler_skips: int = _count(20, least=1)
    replay: bool = _switch(True)
    keep: str = _one_of("reference", "copy")
    captures: str | Path | None = _path()
    max_captures: int = _count(3, least=1)
    max_capture_bytes: int = _count(2**35, least=1)
    snapshot_every: int = _count(0)
    snapshots: int = _count(2, least=1)
    snapshot_folder: str | Path | None = _path()
    rollback_depth: int = _count(1, least=1)
    max_rollbacks: int = _count(3)
    rewind_data: bool = _switch(False)
    lr_factor: float = _field(0.5, "a number above 0, at most 1", lambda v: _is_number(v) and 0 < v <= 1, parse_float)
    lr_ramp: int = _count(100)
    out_of_memory: str = _one_of("raise", "split")
    max_splits: int = _count(4, least=1)
    log: str | Path | None = _path()

    def __post_init__(self) -> None:
        for name, option in options().items():
            if not option.check(getattr(self, name)):
                raise OptionError(f"{name}={shown(getattr(self, name))} cannot be used: {name} takes {option.accepts}.")
        if self.rollback_depth > self.snapshots:
            raise OptionError(
                f"rollback_depth={self.rollback_depth} cannot be used: only snapshots={self.snapshots} are kept."
            )

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Policy:
        """Of names and values, as a part of a larger configuration has them."""
        for name in given:
            if name not in options():
                known = f"{nearest(str(name), options())} Options: {', '.join(options())}."
                raise OptionError(f"there is no option '{printable(str(name), 100)}' of recovery.{known}")
        return cls(**given)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], table: str = "") -> Policy:
        """Of a TOML file.

        Args:
            path: the file.
            table: which of its tables, ``"train.recovery"``. Default: the whole file is the policy.
        """
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib  # type: ignore[import-not-found]
        with open(path, "rb") as file:
            try:
                given: Any = tomllib.load(file)
            except (ValueError, RecursionError) as error:  # no UTF-8, a number of 5,000 digits
                raise OptionError(f"{os.fspath(path)} is not TOML: {error}.") from None
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

    def with_environment(self, environment: Mapping[str, str]) -> Policy:
        """With what ``TORCHNAN_POLICY=file.toml`` and ``TORCHNAN_POLICY_<FIELD>=value`` say, which go first."""
        base = self
        if environment.get(POLICY):
            base = Policy.from_toml(environment[POLICY])
        return dataclasses.replace(base, **from_environment(environment))


def options() -> dict[str, Option]:
    """The table."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(Policy)}


def variables() -> dict[str, str]:
    """The environment's names for them."""
    return {f"{POLICY}_{name.upper()}": name for name in options()}


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the variables say, but for a file's.

    Raises:
        OptionError: a variable or a value that is not known.
    """
    known = variables()
    given = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(f"{POLICY}_"):
            continue
        if variable not in known:
            raise OptionError(
                f"there is no variable {printable(variable, 100)}.{nearest(variable, known)} Variables: {POLICY}, "
                f"{', '.join(known)}."
            )
        given[known[variable]] = read(variable, options()[known[variable]], text)
    return given
