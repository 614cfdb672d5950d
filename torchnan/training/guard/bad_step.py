"""Analyzes a bad step: replays it, names its cause, and captures it, the same on every rank."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from torchnan.config.policy import Cause, Policy
from torchnan.config.text import printable
from torchnan.detection import report_rows
from torchnan.detection.apart import step_apart
from torchnan.detection.containment import Failures
from torchnan.detection.finding import Finding
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.captures import Captures
from torchnan.training.guard.errors import TrainingStopped
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.step import float32_rerun
from torchnan.training.guard.step.forward_backward import ForwardBackward, StepRun
from torchnan.training.guard.step.gradients import nonfinite_among
from torchnan.training.guard.step.lockstep import ANOTHER_RANK
from torchnan.training.guard.step.operation import Operation, record
from torchnan.training.guard.step.random_state import process_states_kept
from torchnan.training.guard.step.replay import ReplayedStep, digest, not_replayed, replay
from torchnan.training.guard.step.step_inputs import StepInputs
from torchnan.training.guard.step_observer import StepObserver

_MOST_TRIED = 3  # origins
_CAUSES: dict[str, Cause] = {"op": "operation", "parameter": "model", "buffer": "model", "input": "data"}


class BadStepAnalyzer:
    """Turns a bad step into an event.

    Args:
        policy: whether to replay and to capture.
        forward_backward: runs the step again.
        inputs: the saved inputs of the step.
        observer: may want the step run in float32, too.
        agreement: agreement with the other ranks.
        failures: counts parts of the analysis that failed.

    Attributes:
        good_step: the last step at which the model is known to be good, 0 before the first.
        good_losses: its losses, if they are known.
    """

    def __init__(
        self,
        policy: Policy,
        forward_backward: ForwardBackward,
        inputs: StepInputs,
        observer: StepObserver,
        agreement: Agreement,
        failures: Failures,
    ) -> None:
        self._policy = policy
        self._forward_backward = forward_backward
        self._inputs = inputs
        self._observer = observer
        self._agreement = agreement
        self._failures = failures
        self._captures = Captures(policy, agreement, failures)
        self._tried: set[str] = set()  # the origins for which remedies were tried
        self.good_step = 0
        self.good_losses: tuple[float | complex, ...] = ()

    def validate_batch(self, batch: object) -> None:
        """Raises ``UnkeepableError`` for a batch that a capture could not store: before the step, not after."""
        self._captures.validate(batch)

    def raise_locally(self, step: int, anomaly: Anomaly) -> None:
        """Raises without agreement where the other ranks wait in backward for gradients that will not come.

        Raises:
            TrainingStopped: this rank has run out of memory there.
        """
        if anomaly.kind is not AnomalyKind.OUT_OF_MEMORY or not self._forward_backward.waits_in_backward:
            return
        event = StepEvent(step, anomaly.kind.label, anomaly.text, anomaly.rank)
        event.cause, event.action, event.reason = "out_of_memory", "raise", "out_of_memory='split' would go on"
        raise TrainingStopped(str(event), "out_of_memory", event)

    def analyze(self, step: int, run: StepRun, anomaly: Anomaly, norm: float, parts: int) -> StepEvent:
        """Replays the step, names its cause, and captures it. Leaves random states as the step left them. Collective.

        Args:
            step: step number.
            run: the run of the step that was bad.
            anomaly: the worst anomaly of any rank.
            norm: the gradient norm.
            parts: number of parts that each micro-batch was split into.
        """
        event = StepEvent(step, anomaly.kind.label, anomaly.text, anomaly.rank, anomaly.micro_batch, norm=norm)
        with detection_paused():
            event.losses = tuple(run.loss_values or (loss.item() for loss in run.losses))  # type: ignore[arg-type]
        event.good_step, event.good_loss = self.good_step or None, _mean_of_real(self.good_losses)
        if anomaly.kind is AnomalyKind.OUT_OF_MEMORY:
            event.cause = "out_of_memory"
            return event
        try:
            with process_states_kept():
                self._explain(event, run, anomaly, parts)
        finally:
            self._inputs.buffers.restore()
        return event

    def _explain(self, event: StepEvent, run: StepRun, anomaly: Anomaly, parts: int) -> None:
        with self._failures.contained("taking a digest of the step"):
            event.bits = digest(run.losses, self._forward_backward.parameters)
        nonfinite: tuple[str, ...] = ()
        with self._failures.contained("checking the weights"):
            # As before the step: it has not changed parameters, and buffers were saved.
            parameters = self._forward_backward.model.named_parameters()
            buffers = self._inputs.buffers
            kept = [(name, saved) for name, saved in buffers.of_model().items() if not buffers.is_expected(name)]
            nonfinite = nonfinite_among([*parameters, *kept])
        self._name_cause(event, anomaly, self._replay(event, anomaly, parts), nonfinite)
        self._rerun_in_float32(event, anomaly, parts)
        self._try_remedies(event, parts)
        self._capture(event, parts)

    def _capture(self, event: StepEvent, parts: int) -> None:
        if not self._captures.has_room():
            self._captures.note_limit(event)
            return
        operation = None
        with self._failures.contained("recording the operation"):
            operation = self._operation(event.finding, parts)
        self._captures.save(event, self._forward_backward, self._inputs, operation)

    def _replay(self, event: StepEvent, anomaly: Anomaly, parts: int) -> ReplayedStep:
        reason = ""
        if anomaly.kind is AnomalyKind.INSTABILITY:
            reason = "everything in it is finite"
        elif not self._policy.replay:
            reason = "replay=False"
        elif self._forward_backward.step_fn is None:
            reason = "there is no step_fn to run it with"
        elif (mutated := self._inputs.mutated_tensor()) is not None:
            reason = f"the step has written to its {mutated}: keep='copy' keeps batches as they were"
        if self._agreement.all_reduce_max(int(bool(reason))) > 0:
            return not_replayed(reason or ANOTHER_RANK)
        rerun = functools.partial(self._rerun, parts)
        return replay(rerun, self._forward_backward, self._agreement, original=event.bits, step=event.step)

    def _rerun_in_float32(self, event: StepEvent, anomaly: Anomaly, parts: int) -> None:
        """Runs a non-finite step in float32 on all ranks if the observer of any rank wants it."""
        is_nonfinite = anomaly.kind in (AnomalyKind.LOSS, AnomalyKind.GRADIENT, AnomalyKind.SCALER)
        if event.verdict is None or not is_nonfinite:
            return
        if self._agreement.all_reduce_max(int(self._observer.wants_float32_rerun)) == 0:
            return
        rerun = functools.partial(self._rerun, parts)
        with self._failures.contained("running the step in float32"):
            event.finite_in_float32 = float32_rerun.is_finite_in_float32(rerun, self._forward_backward, self._agreement)

    def _try_remedies(self, event: StepEvent, parts: int) -> None:
        """Tries remedies on a step that was bad in the replay, too, for a few origins, each once."""
        is_new = event.origin not in self._tried and len(self._tried) < _MOST_TRIED
        if not self._policy.try_remedies or event.verdict in (None, "transient") or not is_new:
            return
        self._tried.add(event.origin)
        if self._agreement.ranks > 1:
            event.notes.append("no remedy was tried: the ranks would have to try the same")
            return
        from torchnan.training.guard.remedies.step_trials import try_on_step  # few runs need it

        before = None
        if event.good_step is not None and event.good_loss is not None:
            before = event.good_step, event.good_loss
        with self._failures.contained("trying remedies"):
            trials = try_on_step(
                functools.partial(self._run, parts),
                self._forward_backward,
                [batch.restored() for batch in self._inputs.batches],
                event.finding,
                before=before,
                step=event.step,
            )
            event.remedies = str(trials)

    def _rerun(self, parts: int, after_backward: Callable[[], None] = lambda: None) -> StepRun:
        """Runs the step again from its saved inputs."""
        return self._run(parts, [batch.restored() for batch in self._inputs.batches], after_backward)

    def _run(self, parts: int, batches: list[Any], after_backward: Callable[[], None]) -> StepRun:
        """Runs the step from its saved state. The weights are unchanged, as nothing has been applied."""
        self._inputs.restore()
        self._forward_backward.optimizer.zero_grad(set_to_none=True)
        randoms = [batch.random for batch in self._inputs.batches]
        run = self._forward_backward.start(batches, parts, randoms, after_backward, in_lockstep=True)
        return self._forward_backward.read(run)

    def _operation(self, finding: Finding | None, parts: int) -> Operation | None:
        """Records the operation of a finding. All ranks run the step if any has one, because of its collectives."""
        if self._agreement.all_reduce_max(int(finding is not None)) == 0:
            return None
        if finding is None or finding.collective is not None:  # the rank that made the value captures its operation
            step_apart(lambda: self._rerun(parts))
            return None
        return record(lambda: self._rerun(parts), finding)

    def _name_cause(
        self, event: StepEvent, anomaly: Anomaly, replayed: ReplayedStep, nonfinite: tuple[str, ...]
    ) -> None:
        """Fills in verdict, origin and cause.

        Args:
            event: the event to fill in.
            anomaly: the worst anomaly of any rank.
            replayed: the result of the replay.
            nonfinite: names of this rank's parameters and buffers that were non-finite before the step.
        """
        event.verdict, event.finding = replayed.verdict, replayed.finding
        event.same_bits = replayed.same_bits if replayed.verdict is not None else None
        event.finite_in_eager = replayed.finite_in_eager
        origin = self._agreed_origin(replayed.finding, anomaly)
        event.origin, event.rank = origin.get("text", ""), int(origin.get("rank", anomaly.rank))
        is_model_good = self._agreement.all_reduce_max(len(nonfinite)) == 0
        event.cause = self._cause(replayed, anomaly, origin.get("origin", ""), is_model_good)
        if not is_model_good:
            source = self._agreement.lowest_rank_with_max(int(bool(nonfinite)))
            event.model_note = self._agreement.broadcast_text(self._describe_bad_model(nonfinite), source)
        if not origin and anomaly.kind is AnomalyKind.GRADIENT and self._forward_backward.gradients_arrive_reduced:
            event.notes.append("gradients were averaged before they were checked: any rank may have made it")
        if replayed.reason:
            event.notes.append(f"not replayed: {replayed.reason}")

    def _agreed_origin(self, finding: Finding | None, anomaly: Anomaly) -> dict[str, str]:
        """Returns the origin that all ranks report; empty if none has one.

        Prefers ranks where the value was made to those that received it, and then the rank of the anomaly.
        """
        rank, ranks = self._agreement.rank, self._agreement.ranks
        priority = 0
        if finding is not None:
            was_made_here = finding.origin not in ("input", "foreign")
            priority = 1 + (anomaly.rank == self._agreement.global_rank) + 2 * was_made_here
        best = self._agreement.all_reduce_max(priority * ranks + ranks - 1 - rank if priority else 0)
        if best == 0:
            return {}
        owner = ranks - 1 - best % ranks
        suffix = f", on rank {self._agreement.global_rank}" if ranks > 1 else ""
        mine = {} if finding is None else {"origin": finding.origin, "text": _in_one_line(finding) + suffix}
        mine["rank"] = str(self._agreement.global_rank)
        agreed: dict[str, str] = json.loads(self._agreement.broadcast_text(json.dumps(mine), owner))
        return agreed

    def _cause(self, replayed: ReplayedStep, anomaly: Anomaly, origin: str, is_model_good: bool) -> Cause:
        if not is_model_good:
            return "model"
        if replayed.verdict in ("transient", "nondeterministic"):
            return replayed.verdict
        if anomaly.kind in (AnomalyKind.NORM, AnomalyKind.INSTABILITY):
            return "norm" if anomaly.kind is AnomalyKind.NORM else "instability"
        return _CAUSES.get(origin, "operation") if origin else "unknown"

    def _describe_bad_model(self, nonfinite: tuple[str, ...]) -> str:
        names = ", ".join(printable(name, 200) for name in nonfinite[:5])
        more = f" and {len(nonfinite) - 5} more" if len(nonfinite) > 5 else ""
        since = f"after step {self.good_step}, the last good one" if self.good_step else "before the first good step"
        where = f"on rank {self._agreement.global_rank} " if self._agreement.ranks > 1 else ""
        return f"bad {where}before this step ran: {names}{more}; written {since}"


def _mean_of_real(losses: tuple[float | complex, ...]) -> float | None:
    real = [loss for loss in losses if not isinstance(loss, complex)]
    return sum(real) / len(real) if real else None


def _in_one_line(finding: Finding) -> str:
    kind = {"nan": "NaN", "inf": "Inf"}[finding.kind]
    origin = report_rows.origin(str(finding))
    came = "in" if finding.origin in ("input", "parameter", "buffer", "uninit") else "made by"
    came = "of an origin that is" if origin.startswith("not known") else came
    because = f": {finding.hint}" if finding.hint else ""
    return printable(f"{kind} {came} {origin}{because}", 1000)
