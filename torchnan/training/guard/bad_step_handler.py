"""Handles bad steps: analyzes them, chooses an action, and carries it out, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchnan.config.options import OptionError, one_of
from torchnan.config.policy import ACTIONS, Action, Policy
from torchnan.config.text import brief
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement, Anomaly
from torchnan.training.guard.bad_step import BadStepAnalyzer
from torchnan.training.guard.decision import Decider, Decision
from torchnan.training.guard.errors import TrainingStopped
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.instability import InstabilityResponse
from torchnan.training.guard.model_update import ModelUpdate
from torchnan.training.guard.reporter import Reporter
from torchnan.training.guard.rollback import Rollback
from torchnan.training.guard.step.forward_backward import StepRun
from torchnan.training.guard.step_observer import StepObserver


class BadStepHandler:
    """Applies the policy to bad steps.

    Args:
        policy: what is done about bad steps.
        analyzer: names the cause of a bad step.
        observer: finds instabilities of the run.
        update: its learning rates are cut after a rollback.
        rollback: takes and restores snapshots.
        reporter: reports events.
        agreement: agreement with the other ranks.
        failures: counts exceptions of ``on_instability``, which then requests nothing.
        on_instability: the user's callback, or ``None``.
    """

    def __init__(
        self,
        policy: Policy,
        analyzer: BadStepAnalyzer,
        observer: StepObserver,
        update: ModelUpdate,
        rollback: Rollback,
        reporter: Reporter,
        agreement: Agreement,
        failures: Failures,
        on_instability: Callable[[StepEvent], Action | None] | None,
    ) -> None:
        self._analyzer = analyzer
        self._update = update
        self._rollback = rollback
        self._reporter = reporter
        self._decider = Decider(policy)
        self._agreement = agreement
        self._failures = failures
        self._on_instability = on_instability
        self._instability = InstabilityResponse(policy.instability, observer, agreement, update, reporter, failures)

    @property
    def parts(self) -> int:
        """Number of parts that micro-batches are split into, to fit into memory."""
        return int(2**self._decider.budget.splits)

    def find_instability(self, step: int, norm: float) -> Anomaly | None:
        """Returns an instability found with an otherwise good step that keeps it from being applied, or ``None``."""
        return self._instability.check(step, norm)

    def exceeds_scaler_skips(self) -> bool:
        """Counts a step that a loss scaler skips to find its scale. Returns whether that is one too many in a row."""
        return self._decider.exceeds_scaler_skips()

    def record_good_step(self, step: int, losses: tuple[float | complex, ...]) -> None:
        """Records that a step was applied, and its losses."""
        self._decider.record_good_step()
        self._analyzer.good_step, self._analyzer.good_losses = step, losses

    def decide(
        self, step: int, run: StepRun, anomaly: Anomaly, norm: float, *, can_run_again: Callable[[], bool]
    ) -> tuple[StepEvent, Decision]:
        """Analyzes a bad step and chooses an action. Collective.

        Args:
            step: step number.
            run: the run of the step on this rank.
            anomaly: the worst anomaly of any rank.
            norm: the gradient norm.
            can_run_again: returns whether exactly the same step can be run again, the same on every rank.
        """
        event = self._analyzer.analyze(step, run, anomaly, norm, self.parts)
        event.consecutive = self._decider.budget.consecutive + 1
        instability = self._instability.action_for(event)
        requested = self._requested_action(event)
        decision = self._decider.decide(
            event,
            can_roll_back=self._rollback.possible,
            can_run_again=can_run_again(),
            requested=requested,
            instability=instability,
        )
        return event, decision

    def _requested_action(self, event: StepEvent) -> Action | None:
        """Returns the gravest action that the callback of any rank requests, or ``None``. Collective.

        Raises:
            OptionError: the callback of any rank returned something else.
        """
        requested, failure = None, ""
        if self._on_instability is not None:
            with self._failures.contained("on_instability"):
                requested = self._on_instability(event)
        if requested is not None and not one_of(*ACTIONS)(requested):
            failure = f"on_instability returned {brief(requested)}: it returns None or one of {', '.join(ACTIONS)}."
            requested = None
        failure = self._agreement.first_failure(failure)
        if failure:
            raise OptionError(failure)
        gravest = self._agreement.all_reduce_max(0 if requested is None else ACTIONS.index(requested) + 1)
        return None if gravest == 0 else ACTIONS[gravest - 1]

    def carry_out(self, event: StepEvent, decision: Decision) -> int | None:
        """Carries out a decision and reports the event. Collective.

        Returns:
            The step that training was rolled back to, or ``None``.

        Raises:
            TrainingStopped: the action is to raise, or no snapshot can be restored.
        """
        self._decider.record(decision)
        event.action, event.reason = decision.action, decision.reason
        if decision.action == "rollback":
            try:
                event.snapshot = self._rollback.restore(self._decider.snapshots_back())
            except TrainingStopped as stopped:
                event.action, event.reason = "raise", str(stopped)
                self._reporter.report(event)
                raise TrainingStopped(str(event), stopped.reason, event) from stopped
            event.lr_factor, event.lr = self._update.lr_cut.cut(), self._update.lr_cut.rates
            self._analyzer.good_step, self._analyzer.good_losses = event.snapshot, ()
        self._reporter.report(event)
        if decision.action == "raise":
            raise TrainingStopped(str(event), decision.exit_reason, event)
        return event.snapshot

    def check_replicas(self, step: int) -> tuple[StepEvent, Decision] | None:
        """Returns an event and an action if the ranks of a DDP model have different weights, else ``None``."""
        if not self._rollback.replicas_differ():
            return None
        event = StepEvent(step, "replicas", "the weights of the ranks differ", cause="model")
        return event, self._decider.decide(event, can_roll_back=self._rollback.possible)

    def is_snapshot_due(self, step: int) -> bool:
        """Returns whether to take a snapshot after this step: never among bad steps, which the weights may cause."""
        return self._decider.budget.consecutive == 0 and self._rollback.due(step)

    def state_dict(self) -> dict[str, Any]:
        """Returns what has been used of the budgets."""
        return self._decider.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self._decider.load_state_dict(state)
