"""Policy: what to do about bad steps, set by keywords, a TOML file or the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from torchnan.config.environment import POLICY
from torchnan.config.options import (
    Option,
    OptionError,
    Settings,
    is_number,
    is_path,
    nonnegative_int,
    one_of,
    parse_float,
    read,
    setting,
    suggest,
    switch,
    takes_old_names,
)
from torchnan.config.text import printable

Instability = Literal[  # the worst first
    "nonfinite",
    "fp16_overflow",
    "loss_scale_collapse",
    "loss_scale_constant",
    "silent_divergence",
    "persistent_elevation",
    "spike",
    "plateau",
]
INSTABILITIES: tuple[Instability, ...] = get_args(Instability)

Action = Literal["skip", "retry", "split", "rollback", "raise", "cut_lr", "lower_clip"]
Cause = Literal[
    "operation", "data", "model", "norm", "transient", "nondeterministic", "out_of_memory", "unknown", "instability"
]

ACTIONS: tuple[Action, ...] = ("retry", "split", "skip", "rollback", "raise")  # from mildest to gravest
# Actions for a finite step at which a monitor finds the run unstable, from mildest to gravest.
INSTABILITY_ACTIONS: tuple[Action, ...] = ("lower_clip", "cut_lr", "skip", "rollback", "raise")
MITIGATIONS: tuple[Action, ...] = ("lower_clip", "cut_lr")  # of these, the ones that leave the step applied
CAUSES: tuple[Cause, ...] = (
    "operation",
    "data",
    "model",
    "norm",
    "transient",
    "nondeterministic",
    "out_of_memory",
    "unknown",
)

# Fields that may differ from rank to rank: files, which not every rank has to write.
OWN_OF_A_RANK = frozenset(("captures", "max_captures", "capture_ranks", "max_capture_bytes", "snapshot_folder", "log"))

POSITIVE = "a number above 0, or nothing"


def is_positive(value: Any) -> bool:
    """Returns whether a value is None or a finite number above 0."""
    return value is None or (is_number(value) and value > 0)


def _positive() -> Any:
    return setting(None, POSITIVE, is_positive, parse_float)


def _one_of(*values: str) -> Any:
    return setting(values[0], f"one of {', '.join(values)}", one_of(*values))


def _path() -> Any:
    return setting(None, "a path, or nothing", lambda v: v is None or is_path(v))


def _pairs(text: str) -> dict[str, str]:
    pairs = [tuple(part.strip(" ") for part in pair.split("=")) for pair in text.split(",")]
    if len(dict(pairs)) < len(pairs):  # type: ignore[arg-type]
        raise ValueError(text)
    return dict(pairs)  # type: ignore[arg-type]


_REMEDIES = f"actions ({', '.join(ACTIONS)}) by cause ({', '.join(CAUSES)})"


_INSTABILITY_ACTIONS = f"actions ({', '.join(INSTABILITY_ACTIONS)}) by kind of verdict ({', '.join(INSTABILITIES)})"


def _table(accepts: str, keys: tuple[str, ...], values: tuple[str, ...], example: str) -> Any:
    """Returns a field that maps some of the keys to values."""

    def is_one(given: Any) -> bool:
        return isinstance(given, Mapping) and all(one_of(*keys)(k) and one_of(*values)(v) for k, v in given.items())

    option = Option({}, accepts, is_one, _pairs, f"{accepts}, as {example}")
    return dataclasses.field(default_factory=dict, metadata={"option": option})


def _share(default: float) -> Any:
    return setting(default, "a number above 0, at most 1", lambda v: is_number(v) and 0 < v <= 1, parse_float)


@takes_old_names
@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Settings):
    """The checks, saved data and actions of a StepGuard. Every field can be set in TOML and in the environment.

    Raises:
        OptionError: a name or a value that cannot be used.

    Attributes:
        on_bad_step: what is done about a bad step if ``remedy`` does not say it: ``"skip"``, ``"rollback"``,
            ``"raise"``.
        max_consecutive: maximum number of bad steps skipped in a row. The next one is rolled back if there is a
            snapshot; otherwise training stops.
        max_skips: maximum number of bad steps skipped in the whole run; then training stops.
        remedy: actions by cause, over the defaults of :data:`REMEDIES`: ``{"data": "skip", "norm": "rollback"}``.
        instability: actions by kind of verdict, taken when a verdict of the ``monitor`` becomes true: ``{"spike":
            "skip", "silent_divergence": "cut_lr", "persistent_elevation": "rollback"}``. ``"skip"``, ``"rollback"``
            and ``"raise"`` do not apply the step; from that step on, ``"cut_lr"`` multiplies learning rates with
            ``lr_factor``, and ``"lower_clip"`` multiplies the clipping norm with ``clip_factor``. Default: none.
        retries: how often a step that was finite in the replay is run again.
        max_norm: gradients are clipped to this 2-norm, with the bits of ``torch.nn.utils.clip_grad_norm_``, which takes
            a second pass over the gradients of a step whose norm is near ``max_norm`` or above.
        exact_clip: False clips with the norm that the guard has measured, without the second pass; gradients then
            differ from those of ``clip_grad_norm_`` in their last bits.
        norm_limit: a step with a larger gradient norm is bad.
        norm_factor: so is one above this multiple of the mean norm of the last ``norm_window`` good steps.
        max_scaler_skips: steps in a row that a loss scaler may skip to find its scale; one more is a bad step.
        replay: replay a bad step twice under ``detect()``, to find its origin.
        try_remedies: run the step once more for each remedy that fits its origin, and report which make it finite. Done
            for the first three origins of a run that replays find, on one rank alone.
        keep: how batches are saved for the replay: by ``"reference"`` (a step that mutates its batch cannot be
            replayed) or as a ``"copy"``.
        captures: folder for captures of bad steps: of at most ``max_captures`` steps of the whole job. Each rank writes
            a folder of at most ``max_capture_bytes``. What several ranks hold alike is in one of them: the weights
            under DDP.
        capture_ranks: how many ranks write a captured step. Those that hold weights of their own, such as shards,
            always do.
        snapshot_every: number of steps between snapshots of model, optimizer, scaler, scheduler and random states. 0:
            no snapshots.
        snapshots: maximum number of snapshots.
        snapshot_folder: folder for snapshots on disk, in place of memory.
        rollback_depth: 1 restores the newest snapshot, 2 the one before it. Each rollback that was not enough is
            followed by one that goes further back.
        max_rollbacks: maximum number of rollbacks; then training stops.
        health: check ranks and devices before a rollback, by :func:`torchnan.health.check`; training stops if one of
            them is gone or computes wrong.
        rewind_data: whether a rollback restores the position in the data, too. Default: training continues with new
            data.
        lr_factor: multiplies learning rates after a rollback or ``"cut_lr"``; they are ramped back over ``lr_ramp``
            good steps.
        clip_factor: ``"lower_clip"`` multiplies ``max_norm`` with this; without one, the mean of the last norms.
        out_of_memory: ``"raise"``, or ``"split"``: micro-batches are halved, up to ``max_splits`` times, and the same
            step is run again.
        max_undo_bytes: on a GPU, how much memory is reserved so that the device undoes a bad step by itself, which the
            host hears of in the next step. Nothing is written there in a good step. 0: each step waits for its verdict.
        log: path of the recovery log, with one line of JSON per event.
    """

    TOPIC: ClassVar[str] = "recovery"
    OLD_NAMES: ClassVar[Mapping[str, str]] = {"action": "on_bad_step"}  # removed in the release after 0.1

    on_bad_step: str = _one_of("skip", "rollback", "raise")
    max_consecutive: int = nonnegative_int(5, minimum=1)
    max_skips: int = nonnegative_int(100)
    remedy: Mapping[str, Action] = _table(_REMEDIES, CAUSES, ACTIONS, "data=raise,norm=rollback")
    instability: Mapping[str, Action] = _table(
        _INSTABILITY_ACTIONS, INSTABILITIES, INSTABILITY_ACTIONS, "spike=skip,silent_divergence=cut_lr"
    )
    retries: int = nonnegative_int(2)
    max_norm: float | None = _positive()
    exact_clip: bool = switch(True)
    norm_limit: float | None = _positive()
    norm_factor: float | None = _positive()
    norm_window: int = nonnegative_int(100, minimum=10)
    max_scaler_skips: int = nonnegative_int(20, minimum=1)
    replay: bool = switch(True)
    try_remedies: bool = switch(False)
    keep: str = _one_of("reference", "copy")
    captures: str | Path | None = _path()
    max_captures: int = nonnegative_int(3, minimum=1)
    capture_ranks: int = nonnegative_int(64, minimum=1)
    max_capture_bytes: int = nonnegative_int(2**35, minimum=1)
    snapshot_every: int = nonnegative_int(0)
    snapshots: int = nonnegative_int(2, minimum=1)
    snapshot_folder: str | Path | None = _path()
    rollback_depth: int = nonnegative_int(1, minimum=1)
    max_rollbacks: int = nonnegative_int(3)
    health: bool = switch(True)
    rewind_data: bool = switch(False)
    lr_factor: float = _share(0.5)
    lr_ramp: int = nonnegative_int(100)
    clip_factor: float = _share(0.5)
    out_of_memory: str = _one_of("raise", "split")
    max_splits: int = nonnegative_int(4, minimum=1)
    max_undo_bytes: int = nonnegative_int(2**35)
    log: str | Path | None = _path()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rollback_depth > self.snapshots:
            raise OptionError(
                f"rollback_depth={self.rollback_depth} cannot be used: only snapshots={self.snapshots} are kept."
            )
        if self.try_remedies and not self.replay:
            raise OptionError("try_remedies=True cannot be used: with replay=False no origin is found for a remedy.")

    def with_environment(self, environment: Mapping[str, str]) -> Policy:
        """Returns this policy, overridden by ``TORCHNAN_POLICY=file.toml`` and ``TORCHNAN_POLICY_<FIELD>=value``."""
        base = self
        if environment.get(POLICY):
            base = Policy.from_toml(environment[POLICY])
        return dataclasses.replace(base, **from_environment(environment))


def options() -> dict[str, Option]:
    """Returns the options by name."""
    return Policy.options()


def variables() -> dict[str, str]:
    """Returns the field of each environment variable."""
    return {f"{POLICY}_{name.upper()}": name for name in options()}


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields set by environment variables, without those of a TOML file.

    Raises:
        OptionError: a variable or a value that is not known.
    """
    known = variables()
    old = {f"{POLICY}_{name.upper()}": name for name in Policy.OLD_NAMES}
    given = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(f"{POLICY}_"):
            continue
        if variable not in known and variable not in old:
            raise OptionError(
                f"there is no variable {printable(variable, 100)}.{suggest(variable, known)} Variables: {POLICY}, "
                f"{', '.join(known)}."
            )
        name = known.get(variable) or old[variable]
        given[name] = read(f"{variable}=", options()[Policy.OLD_NAMES.get(name, name)], text)
    return Policy.with_new_names(given)
