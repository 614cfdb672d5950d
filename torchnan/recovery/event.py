"""One bad step: what was seen, where it came from, and what was done about it."""

from __future__ import annotations

import dataclasses
import json
import socket
from typing import Any, Literal

import torch

from torchnan.config.text import printable
from torchnan.detection.finding import Finding
from torchnan.storage.jsonl import LOWERCASE, encode_nonfinite, sanitize_text

SCHEMA = 1

Action = Literal["skip", "retry", "split", "rollback", "raise", "cut_lr", "lower_clip"]
Cause = Literal[
    "operation", "data", "model", "norm", "transient", "nondeterministic", "out_of_memory", "unknown", "instability"
]

ACTIONS: tuple[Action, ...] = ("retry", "split", "skip", "rollback", "raise")  # the graver, the later
# What a step that is finite can be answered with, where a monitor finds the run unstable.
INSTABILITY_ACTIONS: tuple[Action, ...] = ("lower_clip", "cut_lr", "skip", "rollback", "raise")
MITIGATIONS: tuple[Action, ...] = ("lower_clip", "cut_lr")  # the step is applied
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


@dataclasses.dataclass
class StepEvent:
    """A bad step. ``str(event)`` is what a person reads, :meth:`to_json` a line of the recovery log.

    Attributes:
        step: 1-based.
        what: what stopped it: ``"loss"``, ``"gradient"``, ``"norm"``, ``"out_of_memory"`` or ``"scaler"``;
            ``"instability"``: it is finite, and a monitor finds the run unstable; or ``"replicas"``: the step was good,
            but after it the ranks of a DDP model have different weights.
        seen: what was seen, with values.
        rank: which rank saw it first; ``micro_batch``: in which of the step's, 0-based.
        host, device: where this rank runs.
        cause: ``"operation"`` an operation made it of finite values, ``"data"`` it came in with the batch, ``"model"``
            a parameter or buffer was bad before the step, ``"norm"`` everything is finite but too large,
            ``"transient"``, ``"nondeterministic"``, ``"out_of_memory"``, ``"unknown"`` (there was no replay),
            ``"instability"``.
        verdict: of the replay, ``None`` if there was none; ``same_bits``: whether it came out bit for bit alike.
        finite_in_float32: whether the same step, run once more in float32, is finite; ``None`` if it was not.
        bits: a digest of the step's losses and gradients.
        finding: the origin; ``origin``: the same in one line, as the rank said that found it.
        losses: of the micro-batches; ``norm``: of the gradients.
        model_note: what is known of when the model went bad.
        action, reason: what was done, and why.
        capture: folder that holds what the step needs to run again, ``None`` if none was written.
        snapshot: step that was gone back to.
        lr_factor: what the learning rate is multiplied with from now on.
        consecutive: bad steps in a row, this one included.
        notes: what else is to be known.
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
    finite_in_float32: bool | None = None
    bits: str = ""
    finding: Finding | None = None
    origin: str = ""
    losses: tuple[float, ...] = ()
    norm: float | None = None
    model_note: str = ""
    action: Action = "skip"
    reason: str = ""
    capture: str | None = None
    snapshot: int | None = None
    lr_factor: float = 1.0
    consecutive: int = 1
    notes: list[str] = dataclasses.field(default_factory=list)

    def to_json(self) -> str:
        """One line of strict JSON; non-finite numbers are strings."""
        return json.dumps(self.facts(), allow_nan=False)

    def facts(self) -> dict[str, Any]:
        """What :meth:`to_json` writes."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["finding"] = None if self.finding is None else json.loads(self.finding.to_json())
        return {"schema": SCHEMA, **encode_nonfinite(sanitize_text(fields), LOWERCASE)}

    def __str__(self) -> str:
        rows = [
            ("seen", f"{self.seen}   by rank {self.rank}"),
            ("replay", self._replay_text()),
            ("origin", self.origin),
            ("float32", {True: _NARROW, False: _STRUCTURAL, None: ""}[self.finite_in_float32]),
            ("model", self.model_note),
            ("action", f"{self.action}: {self.reason}" if self.reason else ""),
            ("capture", self.capture or ""),
            *(("note", note) for note in self.notes),
        ]
        lines = [f"torchnan: step {self.step} was not applied ({printable(self.what.replace('_', ' '))})"]
        if self.action in MITIGATIONS:
            lines = [f"torchnan: at step {self.step} the run is unstable"]
        if self.what == "replicas":
            lines = [f"torchnan: after step {self.step} the ranks have come apart"]
        lines += [f"  {name:<9} {printable(text, 1000)}" for name, text in rows if text]
        return "\n".join(lines)

    def _replay_text(self) -> str:
        if self.verdict is None:
            return ""
        bits = {True: "same bits", False: "other bits", None: "bits not compared"}[self.same_bits]
        meaning = {
            "persistent": f"persistent: wrong again, same origin, {bits}",
            "nondeterministic": "nondeterministic: not the same each time it is run",
            "transient": f"transient: finite when run again; suspect hardware or a race on {self.host} ({self.device})",
        }
        return meaning[self.verdict]


_NARROW = "finite: the range of the narrower dtype is exceeded, the program is sound"
_STRUCTURAL = "not finite either: it is not the range of the narrower dtype"


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What has become of one step.

    Attributes:
        step: its number, 1-based.
        applied: whether the optimizer has stepped.
        loss: mean of the micro-batches' losses on this rank, detached; ``None`` if there is none.
        norm: 2-norm of all gradients before clipping; not finite if they are not.
        event: what was wrong and what was done, in the end, if it was run again for good; ``None`` for a good step, and
            where a loss scaler skipped it.
    """

    step: int
    applied: bool
    loss: torch.Tensor | None
    norm: float
    event: StepEvent | None = None


def host_and_device(device: torch.device) -> str:
    """Where a model is trained: host and device."""
    return f"{socket.gethostname()} {device}"
