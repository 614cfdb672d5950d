"""What a bad step was: replayed, its cause named, captured; the same on every rank."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from torchnan.config.text import printable
from torchnan.detection.containment import Failures
from torchnan.detection.finding import Finding
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.recovery.captures import Captures
from torchnan.recovery.errors import TrainingStopped
from torchnan.recovery.event import Cause, StepEvent
from torchnan.recovery.policy import Policy
from torchnan.recovery.step import float32_rerun
from torchnan.recovery.step.forward_backward import ForwardBackward, StepRun
from torchnan.recovery.step.gradients import nonfinite_among
from torchnan.recovery.step.operation import Operation, record
from torchnan.recovery.step.random_state import RandomState
from torchnan.recovery.step.replay import ANOTHER_RANK, Replay, digest, not_replayed, replay
from torchnan.recovery.step.step_inputs import StepInputs

_CAUSES: dict[str, Cause] = {"op": "operation", "parameter": "model", "buffer": "model", "input": "data"}


class BadStepAnalyzer:
    """Turns a bad step into an event.

    Args:
        policy: whether to replay and to capture.
        forward_backward: knows what is trained, and runs the step again.
        start: what it started from.
        agreement: with the other ranks.
        failures: told of what could not be found out, or kept.
    """

    def __init__(
        self,
        policy: Policy,
        forward_backward: ForwardBackward,
        start: StepInputs,
        agreement: Agreement,
        failures: Failures,
    ) -> None:
        self._policy = policy
        self._forward_backward = forward_backward
        self._start = start
        self._agreement = agreement
        self._failures = failures
        self._captures = Captures(policy, agreement.global_rank, agreement.ranks, failures)
        self._last_good = 0
        self.wants_float32: Callable[[], bool] = lambda: False  # whether a bad step is to be run in float32, too

    def record_good_step(self, step: int) -> None:
        """A step was applied."""
        self._last_good = step

    def validate_batch(self, batch: Any) -> None:
        """Before the step runs, not after it has failed."""
        self._captures.validate(batch)

    def raise_locally(self, step: int, run: StepRun) -> None:
        """The other ranks wait in their backward pass for gradients that will not come: there is no asking them.

        Raises:
            TrainingStopped: this rank has run out of memory there.
        """
        anomaly = run.anomaly
        if (
            anomaly is None
            or anomaly.kind is not AnomalyKind.OUT_OF_MEMORY
            or not self._forward_backward.waits_in_backward
        ):
            return
        event = StepEvent(step, anomaly.kind.label, anomaly.text, anomaly.rank)
        event.cause, event.action, event.reason = "out_of_memory", "raise", "out_of_memory='split' would go on"
        raise TrainingStopped(str(event), "out_of_memory", event)

    def explain(self, step: int, run: StepRun, worst: Anomaly, norm: float, parts: int) -> StepEvent:
        """Replays the step, names its cause, and captures it. Leaves random states as the step has left them."""
        event = StepEvent(step, worst.kind.label, worst.text, worst.rank, worst.micro_batch, norm=norm)
        with detection_paused():
            event.losses = tuple(loss.item() for loss in run.losses)
        if worst.kind is AnomalyKind.OUT_OF_MEMORY:
            event.cause = "out_of_memory"
            return event
        after = RandomState.now()
        with self._failures.contained("taking a digest of the step"):
            event.bits = digest(run.losses, self._forward_backward.parameters)
        bad: tuple[str, ...] = ()
        with self._failures.contained("looking at the weights"):
            # Before the step: it has not written parameters, and of buffers there are copies.
            bad = nonfinite_among([*self._forward_backward.model.named_parameters(), *self._start.buffers().items()])
        self._name_cause(event, worst, self._replay(event, worst, parts), bad)
        self._run_in_float32(event, worst, parts)
        room = self._agreement.all_reduce_max(int(self._captures.has_room)) > 0
        operation = None
        if room:
            with self._failures.contained("recording the operation"):
                operation = self._operation(event.finding, parts)
        self._captures.keep(event, self._forward_backward.model, self._start, operation)
        self._start.restore_buffers()
        after.restore()
        return event

    def _replay(self, event: StepEvent, worst: Anomaly, parts: int) -> Replay:
        reason = ""
        if worst.kind is AnomalyKind.INSTABILITY:
            reason = "everything in it is finite"
        elif not self._policy.replay:
            reason = "replay=False"
        elif self._forward_backward.step_fn is None:
            reason = "there is no step_fn to run it with"
        elif (written := self._start.written()) is not None:
            reason = f"the step has written to its {written}: keep='copy' keeps batches as they were"
        if self._agreement.all_reduce_max(int(bool(reason))) > 0:
            return not_replayed(reason or ANOTHER_RANK)
        again = functools.partial(self._again, parts)
        return replay(again, self._forward_backward, self._agreement, original=event.bits, step=event.step)

    def _run_in_float32(self, event: StepEvent, worst: Anomaly, parts: int) -> None:
        """On all ranks, if the first wants to know."""
        is_nonfinite = worst.kind in (AnomalyKind.LOSS, AnomalyKind.GRADIENT, AnomalyKind.SCALER)
        if event.verdict is None or not is_nonfinite or self._agreement.all_reduce_max(int(self.wants_float32())) == 0:
            return
        again = functools.partial(self._again, parts)
        with self._failures.contained("running the step in float32"):
            event.finite_in_float32 = float32_rerun.in_float32(again, self._forward_backward, self._agreement)

    def _again(self, parts: int, after_backward: Callable[[], None] = lambda: None) -> StepRun:
        """The step as it was: weights are as they were, as nothing has been applied."""
        self._start.restore()
        self._forward_backward.optimizer.zero_grad(set_to_none=True)
        batches = self._start.batches
        randoms = [batch.random for batch in batches]
        return self._forward_backward.run([batch.restored() for batch in batches], parts, randoms, after_backward)

    def _operation(self, finding: Finding | None, parts: int) -> Operation | None:
        """If any rank has found one, all run the step, as it has collectives in it."""
        if self._agreement.all_reduce_max(int(finding is not None)) == 0:
            return None
        if finding is None:
            self._again(parts)
            return None
        return record(lambda: self._again(parts), finding)

    def _name_cause(self, event: StepEvent, worst: Anomaly, replayed: Replay, bad: tuple[str, ...]) -> None:
        event.verdict, event.finding = replayed.verdict, replayed.finding
        event.same_bits = replayed.same_bits if replayed.verdict is not None else None
        told = self._told(replayed.finding, worst)
        event.origin, event.rank = told.get("text", ""), int(told.get("rank", worst.rank))
        everywhere_good = self._agreement.all_reduce_max(len(bad)) == 0
        event.cause = self._cause(replayed, worst, told.get("origin", ""), everywhere_good)
        if not everywhere_good:
            where = self._agreement.lowest_rank_with_max(int(bool(bad)))
            event.model_note = self._agreement.broadcast_text(self._when_it_went_bad(bad), where)
        if not told and worst.kind is AnomalyKind.GRADIENT and self._forward_backward.gradients_arrive_reduced:
            event.notes.append("gradients were averaged before they were looked at: it may have been any rank's")
        if replayed.reason:
            event.notes.append(f"not replayed: {replayed.reason}")

    def _told(self, finding: Finding | None, worst: Anomaly) -> dict[str, str]:
        """What is told of the origin: by a rank that saw it made, rather than by one that it came to; of several, by
        the one that saw the trouble first."""
        here, ranks = self._agreement.rank, self._agreement.ranks
        standing = 0
        if finding is not None:
            saw_it_made = finding.origin not in ("input", "foreign")
            standing = 1 + (worst.rank == self._agreement.global_rank) + 2 * saw_it_made
        best = self._agreement.all_reduce_max(standing * ranks + ranks - 1 - here if standing else 0)
        if best == 0:
            return {}
        owner = ranks - 1 - best % ranks
        where = f", on rank {self._agreement.global_rank}" if ranks > 1 else ""
        mine = {} if finding is None else {"origin": finding.origin, "text": _in_one_line(finding) + where}
        mine["rank"] = str(self._agreement.global_rank)
        told: dict[str, str] = json.loads(self._agreement.broadcast_text(json.dumps(mine), owner))
        return told

    def _cause(self, replayed: Replay, worst: Anomaly, origin: str, model_is_good: bool) -> Cause:
        if not model_is_good:
            return "model"
        if replayed.verdict in ("transient", "nondeterministic"):
            return replayed.verdict
        if worst.kind in (AnomalyKind.NORM, AnomalyKind.INSTABILITY):
            return "norm" if worst.kind is AnomalyKind.NORM else "instability"
        return _CAUSES.get(origin, "operation") if origin else "unknown"

    def _when_it_went_bad(self, bad: tuple[str, ...]) -> str:
        names = ", ".join(printable(name, 200) for name in bad[:5])
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        since = f"after step {self._last_good}, the last good one" if self._last_good else "before the first good step"
        where = f"on rank {self._agreement.global_rank} " if self._agreement.ranks > 1 else ""
        return f"bad {where}before this step ran: {names}{more}; written {since}"


def _in_one_line(finding: Finding) -> str:
    place = f" at {finding.file}:{finding.line}" if finding.file else ""
    module = f" in {finding.module}" if finding.module else ""
    node = f" ({finding.node})" if finding.node else ""
    name = f" {finding.name}" if finding.name else ""
    kind = {"nan": "NaN", "inf": "Inf"}[finding.kind]
    because = f": {finding.hint}" if finding.hint else ""
    return printable(f"{kind} of {finding.origin}{name}, {finding.op}{node}{module}{place}{because}", 1000)
