"""StepEvent: one bad step, its cause, and the action taken."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import torch

from torchnan.config.policy import MITIGATIONS, Action, Cause
from torchnan.config.text import printable
from torchnan.detection.finding import Finding
from torchnan.training.storage.jsonl import LOWERCASE, encode_nonfinite, sanitize_text

SCHEMA = 1

# Possible reasons why a bad step is finite when it is run again, the likeliest first.
SUSPECTS_OF_TRANSIENT = (
    "suspect state of your own code that a replay does not restore (a counter, a schedule), then nondeterminism (a "
    "race, an unseeded draw), then hardware"
)

# Conclusions from whether a bad step is finite when it is run once more in another way.
FINITE_IN_EAGER = {
    True: "finite without torch.compile: the cause is the arithmetic of compiled code, or its random numbers",
    False: "not finite without torch.compile either: the compiler is not the cause",
}
_FINITE_IN_FLOAT32 = {
    True: "finite: the range of the narrower dtype is exceeded, the program is sound",
    False: "not finite either: the range of the narrower dtype is not the cause",
}


@dataclasses.dataclass
class StepEvent:
    """A bad step. ``str(event)`` is a report for people, :meth:`to_json` a line of the recovery log.

    Attributes:
        step: step number, 1-based.
        what: why the step is bad: ``"loss"``, ``"gradient"``, ``"norm"``, ``"out_of_memory"`` or ``"scaler"``;
            ``"instability"``: it is finite, but a monitor finds the run unstable; ``"replicas"``: the step was good,
            but after it the ranks of a DDP model have different weights.
        seen: description of the bad value.
        rank: the rank where it occurred first; ``micro_batch``: the micro-batch where it did, 0-based.
        host, device: where this rank runs.
        cause: ``"operation"``: an operation made it from finite values; ``"data"``: it was in the batch; ``"model"``:
            a parameter or buffer was bad before the step; ``"norm"``: everything is finite but too large;
            ``"transient"``, ``"nondeterministic"``, ``"out_of_memory"``, ``"instability"``; ``"unknown"``: the step
            was not replayed.
        verdict: verdict of the replay, ``None`` without one; ``same_bits``: whether it gave the same bits.
        finite_in_eager: whether a step whose origin is in a compiled region is finite without ``torch.compile``;
            ``None`` if it was not run so.
        finite_in_float32: whether the step is finite when run once more in float32; ``None`` if it was not run so.
        bits: a digest of the step's losses and gradients.
        finding: the origin; ``origin``: the same in one line, from the rank that found it.
        losses: losses of the micro-batches; ``norm``: gradient norm.
        good_step, good_loss: the last step that was applied before, and its loss on this rank.
        model_note: when the model went bad, as far as that is known.
        remedies: what came of the remedies that were tried on the step, as text.
        action, reason: the action taken, and why.
        capture: folder of the capture, ``None`` if none was written.
        snapshot: step of the snapshot that was restored.
        lr_factor: factor that multiplies the learning rate from now on.
        lr: the learning rates of the next step, one for each group of parameters, if the action has changed them.
        consecutive: number of bad steps in a row, including this one.
        notes: further remarks.
    """

    step: int
    what: str
    seen: str
    rank: int = 0
    micro_batch: int = 0
    host: str = ""
    device: str = ""
    cause: Cause = "unknown"
    verdict: str | None = None
    same_bits: bool | None = None
    finite_in_eager: bool | None = None
    finite_in_float32: bool | None = None
    bits: str = ""
    finding: Finding | None = None
    origin: str = ""
    losses: tuple[float, ...] = ()
    norm: float | None = None
    good_step: int | None = None
    good_loss: float | None = None
    model_note: str = ""
    remedies: str = ""
    action: Action = "skip"
    reason: str = ""
    capture: str | None = None
    snapshot: int | None = None
    lr_factor: float = 1.0
    lr: tuple[float, ...] = ()
    consecutive: int = 1
    notes: list[str] = dataclasses.field(default_factory=list)

    def to_json(self) -> str:
        """Returns one line of strict JSON, with non-finite numbers as strings."""
        return json.dumps(self.facts(), allow_nan=False)

    def facts(self) -> dict[str, Any]:
        """Returns the content of :meth:`to_json` as a dict."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["finding"] = None if self.finding is None else json.loads(self.finding.to_json())
        return {"schema": SCHEMA, **encode_nonfinite(sanitize_text(fields), LOWERCASE)}

    def __str__(self) -> str:
        rows = [
            ("seen", f"{self.seen}   by rank {self.rank}"),
            ("replay", self._replay_text()),
            ("origin", self.origin),
            ("eager", "" if self.finite_in_eager is None else FINITE_IN_EAGER[self.finite_in_eager]),
            ("float32", "" if self.finite_in_float32 is None else _FINITE_IN_FLOAT32[self.finite_in_float32]),
            ("model", self.model_note),
            ("action", f"{self.action}: {self.reason}" if self.reason else ""),
            ("back to", "" if self.snapshot is None else f"step {self.snapshot}{self._rates_text()}"),
            ("capture", self.capture or ""),
            *(("note", note) for note in self.notes),
        ]
        lines = [f"torchnan: step {self.step} was not applied ({printable(self.what.replace('_', ' '))})"]
        if self.action in MITIGATIONS:
            lines = [f"torchnan: at step {self.step} the run is unstable"]
        if self.what == "replicas":
            lines = [f"torchnan: ranks diverged after step {self.step}"]
        lines += [f"  {name:<9} {printable(text, 1000)}" for name, text in rows if text]
        lines += [f"  {printable(line, 1000)}" for line in self.remedies.splitlines()]
        return "\n".join(lines)

    def _rates_text(self) -> str:
        rates = ", ".join(f"{rate:.4g}" for rate in dict.fromkeys(self.lr))
        return f", learning rate {rates} (times {self.lr_factor:.4g})" if rates else ""

    def _replay_text(self) -> str:
        if self.verdict is None:
            return ""
        bits = {True: "same bits", False: "other bits", None: "bits not compared"}[self.same_bits]
        meaning = {
            "persistent": f"persistent: wrong again, same origin, {bits}",
            "nondeterministic": "nondeterministic: not the same each time it is run",
            "transient": f"transient: finite when run again; {SUSPECTS_OF_TRANSIENT} on {self.host} ({self.device})",
        }
        return meaning[self.verdict]


def text_of_log_line(line: bytes) -> str | None:
    """Returns a line of the recovery log as text for people; ``None`` if it is not one."""
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict) or not isinstance(facts.get("kind"), str):
        return None
    if facts["kind"] != "step":
        rest = ", ".join(f"{name} {value}" for name, value in facts.items() if name not in ("time", "kind"))
        return printable(f"torchnan: {facts['kind'].replace('_', ' ')} ({rest})", 1000)
    known = {field.name for field in dataclasses.fields(StepEvent)} - {"finding"}
    try:
        return str(StepEvent(**{name: value for name, value in facts.items() if name in known}))
    except (TypeError, KeyError, AttributeError):  # damaged
        return None


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of one step.

    Attributes:
        step: step number, 1-based.
        applied: whether the optimizer has stepped.
        loss: mean loss of the micro-batches on this rank, detached; ``None`` if there is none.
        norm: 2-norm of all gradients before clipping; non-finite if they are.
        event: the last event of the step; ``None`` for a good step, and for one that a loss scaler skipped.
    """

    step: int
    applied: bool
    loss: torch.Tensor | None
    norm: float
    event: StepEvent | None = None


class LateResult(StepResult):
    """The result of a step that a device is still running. What depends on its verdict is known when it is asked for.

    Args:
        step, loss: as of :class:`StepResult`.
        settle: called when the verdict is asked for; calls :meth:`resolve`.
    """

    def __init__(self, step: int, loss: torch.Tensor | None, settle: Callable[[], object]) -> None:
        self._set(step=step, loss=loss, _settle=settle, _result=None)

    def resolve(self, result: StepResult) -> None:
        """Sets what this stands for."""
        self._set(loss=result.loss, _settle=None, _result=result)

    @property
    def applied(self) -> bool:
        return self._known().applied

    @property
    def norm(self) -> float:
        return self._known().norm

    @property
    def event(self) -> StepEvent | None:
        return self._known().event

    def _known(self) -> StepResult:
        if self._result is None:  # type: ignore[attr-defined]
            self._settle()  # type: ignore[attr-defined]
        return self._result  # type: ignore[attr-defined, no-any-return]

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[StepResult], tuple[Any, ...]]:
        return StepResult, (self.step, self.applied, self.loss, self.norm, self.event)
