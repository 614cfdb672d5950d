"""Chooses the action for a bad step from the policy and the actions tried before."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchnan.config.policy import Action, Cause, Policy
from torchnan.training.guard.event import StepEvent

# Default action by cause; other causes get the policy's `action`.
REMEDIES: dict[Cause, Action] = {
    "data": "skip",  # the next batch is different
    "model": "rollback",  # no batch makes bad weights good
    "transient": "retry",  # it was finite when run again
    "nondeterministic": "skip",
    "norm": "skip",
}


@dataclasses.dataclass
class RetryBudget:
    """The used part of the policy's budgets, in the whole run and in a row."""

    consecutive: int = 0
    skips: int = 0
    rollbacks: int = 0
    rollbacks_in_a_row: int = 0
    good_since_rollback: int = 0
    retries: int = 0
    splits: int = 0
    scaler_skips: int = 0


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action and its reason.

    Attributes:
        action: the action.
        reason: why it was chosen.
        exit_reason: a name of ``EXIT_CODES``, used if the action is ``"raise"``.
    """

    action: Action
    reason: str
    exit_reason: str = "persistent"


class Decider:
    """Chooses actions for bad steps, and counts what they use of the budgets.

    Args:
        policy: actions and limits.

    Attributes:
        budget: what has been used.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.budget = RetryBudget()

    def record_good_step(self) -> None:
        """Resets the counts of bad steps in a row: a step was applied."""
        budget = self.budget
        budget.consecutive = budget.retries = budget.splits = budget.scaler_skips = 0
        budget.good_since_rollback += 1
        if budget.good_since_rollback >= self._policy.lr_ramp:  # the last rollback was enough
            budget.rollbacks_in_a_row = 0

    def exceeds_scaler_skips(self) -> bool:
        """Counts a step that a loss scaler skips to find its scale. Returns whether that is one too many in a row."""
        self.budget.scaler_skips += 1
        return self.budget.scaler_skips > self._policy.max_scaler_skips

    def decide(
        self,
        event: StepEvent,
        *,
        can_roll_back: bool,
        can_run_again: bool = True,
        requested: Action | None = None,
        instability: Action | None = None,
    ) -> Decision:
        """Chooses the action for a bad step.

        Args:
            event: the bad step.
            can_roll_back: whether there is a snapshot.
            can_run_again: whether exactly the same step can be run again.
            requested: action requested by ``on_instability``; takes precedence over the policy.
            instability: action of the policy's ``instability`` table; takes precedence over the remedy for the cause.
        """
        if event.cause == "out_of_memory":
            return self._decide_out_of_memory(can_run_again, requested)
        remedies = dict(REMEDIES)
        remedies.update(self._policy.remedy)  # type: ignore[arg-type]
        remedy: Action = remedies.get(event.cause) or self._policy.on_bad_step  # type: ignore[assignment]
        action = requested or instability or remedy
        why = f"the remedy for cause '{event.cause}'"
        if requested or instability:
            why = "on_instability asked for it" if requested else "the policy's answer to this instability"
        if action == "split":
            return Decision("raise", f"split is for out_of_memory, not for '{event.cause}'")
        if action == "retry" and not can_run_again:
            action, why = "skip", "the step cannot be run again as it was"
        if action == "retry" and self.budget.retries >= self._policy.retries:
            action, why = "skip", f"run again {self.budget.retries} times, and bad each time"
        if action == "skip":
            return self._decide_skip(why, can_roll_back)
        if action == "rollback":
            return self._decide_rollback(why, can_roll_back, event)
        exit_reason = "transient" if event.cause == "transient" else "persistent"
        return Decision(action, why, exit_reason)

    def _decide_skip(self, why: str, can_roll_back: bool) -> Decision:
        policy, budget = self._policy, self.budget
        if budget.consecutive >= policy.max_consecutive:
            why = f"{budget.consecutive} bad steps in a row have been skipped (max_consecutive)"
            return self._decide_rollback(why, can_roll_back)
        if budget.skips >= policy.max_skips:
            return Decision("raise", f"{budget.skips} bad steps have been skipped (max_skips)", "exhausted")
        return Decision("skip", why)

    def _decide_rollback(self, why: str, can_roll_back: bool, event: StepEvent | None = None) -> Decision:
        if not can_roll_back:
            reason = "model" if event is not None and event.cause == "model" else "exhausted"
            return Decision("raise", f"{why}, and there is no snapshot to go back to: set snapshot_every", reason)
        if self.budget.rollbacks >= self._policy.max_rollbacks:
            return Decision(
                "raise", f"{why}, and {self.budget.rollbacks} rollbacks are spent (max_rollbacks)", "exhausted"
            )
        return Decision("rollback", why)

    def _decide_out_of_memory(self, can_run_again: bool, requested: Action | None) -> Decision:
        if (requested or self._policy.out_of_memory) not in ("split", "skip"):
            return Decision(
                "raise", "out of memory: out_of_memory='split' would halve the micro-batches", "out_of_memory"
            )
        if requested == "skip":
            return self._decide_skip("on_instability asked for it", False)
        if not can_run_again:
            return Decision("raise", "out of memory, and the step cannot be run again as it was", "out_of_memory")
        if self.budget.splits >= self._policy.max_splits:
            return Decision("raise", f"halved {self.budget.splits} times (max_splits)", "out_of_memory")
        return Decision("split", f"micro-batches in {2 ** (self.budget.splits + 1)} parts")

    def record(self, decision: Decision) -> None:
        """Counts a decision that is being carried out."""
        budget = self.budget
        if decision.action == "skip":
            budget.consecutive += 1
            budget.skips += 1
            budget.retries = 0
        elif decision.action == "rollback":
            budget.rollbacks += 1
            budget.rollbacks_in_a_row += 1
            budget.consecutive = budget.retries = budget.good_since_rollback = 0
        elif decision.action == "retry":
            budget.retries += 1
        elif decision.action == "split":
            budget.splits += 1

    def snapshots_back(self) -> int:
        """Returns how many snapshots before the newest to go back: one more for each rollback that was not enough."""
        return self._policy.rollback_depth - 1 + max(0, self.budget.rollbacks_in_a_row - 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts."""
        return dataclasses.asdict(self.budget)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores counts returned by :meth:`state_dict`."""
        self.budget = RetryBudget(**state)
