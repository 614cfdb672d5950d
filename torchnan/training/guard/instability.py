"""Applies the policy's ``instability`` table to the findings of an observer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchnan.config.policy import INSTABILITY_ACTIONS, MITIGATIONS, Action
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.model_update import ModelUpdate
from torchnan.training.guard.reporter import Reporter
from torchnan.training.guard.step_observer import ObservedInstability, StepObserver


class InstabilityResponse:
    """Chooses the gravest action that the table has for new instabilities, the same on every rank.

    Actions that leave the step applied, :data:`MITIGATIONS`, are carried out here; others are left to the caller.

    Args:
        table: actions by kind of instability.
        observer: finds instabilities.
        agreement: agreement with the other ranks, which have the same table.
        update: its learning rates and clipping norm are lowered.
        reporter: reports mitigations.
        failures: counts what the observer could not do: this rank then has seen nothing.
    """

    def __init__(
        self,
        table: Mapping[str, Action],
        observer: StepObserver,
        agreement: Agreement,
        update: ModelUpdate,
        reporter: Reporter,
        failures: Failures,
    ) -> None:
        self._failures = failures
        self._table = table
        self._observer = observer
        self._agreement = agreement
        self._update = update
        self._reporter = reporter
        self._action: Action | None = None  # chosen for the current step, unless it is a mitigation

    def check(self, step: int, norm: float) -> Anomaly | None:
        """Returns the instability of a step that is otherwise good if the table has an action that does not apply it.

        Args:
            step: the step.
            norm: its gradient norm.
        """
        text, rank = self._evaluate(step, norm)
        return None if self._action is None else Anomaly(AnomalyKind.INSTABILITY, text, 0, rank)

    def action_for(self, event: StepEvent) -> Action | None:
        """Returns the table's action for a bad step that has been analyzed, or ``None``."""
        if event.what != AnomalyKind.INSTABILITY.label:  # else the action was chosen by check()
            self._observer.add_bad_step(event)
            self._evaluate(event.step, event.norm if event.norm is not None else math.nan)
        return self._action

    def _evaluate(self, step: int, norm: float) -> tuple[str, int]:
        """Chooses the action, and carries it out if it is a mitigation. Returns its reason and the rank that saw it."""
        self._action = None
        wanted, text = 0, ""
        found: list[ObservedInstability] = []
        with self._failures.contained("looking for instabilities"):
            found = self._observer.new_instabilities()
        for instability in found:
            action = self._table.get(instability.kind)
            if action is not None and INSTABILITY_ACTIONS.index(action) + 1 > wanted:
                wanted, text = INSTABILITY_ACTIONS.index(action) + 1, instability.text
        gravest = self._agreement.all_reduce_max(wanted) if self._table else 0
        if gravest == 0:
            return "", 0
        rank = self._agreement.lowest_rank_with_max(wanted)
        text = self._agreement.broadcast_text(text, rank)
        action = INSTABILITY_ACTIONS[gravest - 1]
        if action in MITIGATIONS:
            self._mitigate(action, StepEvent(step, AnomalyKind.INSTABILITY.label, text, rank), norm)
        else:
            self._action = action
        return text, rank

    def _mitigate(self, action: Action, event: StepEvent, norm: float) -> None:
        event.cause, event.action = "instability", action
        event.reason = "the policy's answer to this instability"
        if action == "cut_lr":
            event.lr_factor, event.lr = self._update.lr_cut.cut(), self._update.lr_cut.rates
            event.notes.append(f"learning rates are multiplied with {event.lr_factor:.4g}")
        else:
            lowered = self._update.clip.lower(norm)
            clipped = "nothing: there is no known norm to lower" if lowered is None else f"{lowered:.4g}"
            event.notes.append(f"gradients are clipped to a norm of {clipped}")
        self._reporter.report(event)
