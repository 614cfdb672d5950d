"""Which answer a bad step gets, by the policy and by what has been tried."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchnan.recovery.event import Action, Cause, StepEvent
from torchnan.recovery.policy import Policy

# What helps, by cause; other causes get the policy's `action`.
REMEDIES: dict[Cause, Action] = {
    "data": "skip",  # the next batch is another one
    "model": "rollback",  # no batch helps weights that are bad
    "transient": "retry",  # it was finite when run again
    "nondeterministic": "skip",
    "norm": "skip",
}


@dataclasses.dataclass
class RetryBudget:
    """What of the budgets is used up."""

    consecutive: int = 0
    skips: int = 0
    rollbacks: int = 0
    rollbacks_in_a_row: int = 0
    good_since_rollback: int = 0
    retries: int = 0
    splits: int = 0
    scaler_skips: int = 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """An action and why. If it is to raise, ``exit_reason`` is one of the names of ``EXIT_CODES``."""

    action: Action
    reason: str
    exit_reason: str = "persistent"


class Decision:
    """Counts what has been tried and answers the next bad step.

    Args:
        policy: what is wanted.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.spent = RetryBudget()

    def record_good_step(self) -> None:
        """A step was applied."""
        spent = self.spent
        spent.consecutive = spent.retries = spent.splits = spent.scaler_skips = 0
        spent.good_since_rollback += 1
        if spent.good_since_rollback >= self._policy.lr_ramp:  # that rollback was enough
            spent.rollbacks_in_a_row = 0

    def scaler_gives_up(self) -> bool:
        """A loss scaler skips one more step in search of its scale. Whether that is too many in a row."""
        self.spent.scaler_skips += 1
        return self.spent.scaler_skips > self._policy.max_scaler_skips

    def answer(
        self,
        event: StepEvent,
        *,
        can_roll_back: bool,
        can_run_again: bool = True,
        wanted: Action | None = None,
        instability: Action | None = None,
    ) -> Answer:
        """What to do about a bad step.

        Args:
            event: what is known of it.
            can_roll_back: there is a snapshot.
            can_run_again: the very same step can be.
            wanted: what ``on_instability`` has asked for; goes before the policy.
            instability: what the policy's table for verdicts has for this one; goes before the remedy for its cause.
        """
        if event.cause == "out_of_memory":
            return self._memory_answer(can_run_again, wanted)
        remedies = dict(REMEDIES)
        remedies.update(self._policy.remedy)  # type: ignore[arg-type]
        remedy: Action = remedies.get(event.cause) or self._policy.action  # type: ignore[assignment]
        action = wanted or instability or remedy
        why = f"the remedy for cause '{event.cause}'"
        if wanted or instability:
            why = "on_instability asked for it" if wanted else "the policy's answer to this instability"
        if action == "split":
            return Answer("raise", f"split is for out_of_memory, not for '{event.cause}'")
        if action == "retry" and not can_run_again:
            action, why = "skip", "the step cannot be run again as it was"
        if action == "retry" and self.spent.retries >= self._policy.retries:
            action, why = "skip", f"run again {self.spent.retries} times, and bad each time"
        if action == "skip":
            return self._skip_answer(why, can_roll_back)
        if action == "rollback":
            return self._rollback_answer(why, can_roll_back, event)
        exit_reason = "transient" if event.cause == "transient" else "persistent"
        return Answer(action, why, exit_reason)

    def _skip_answer(self, why: str, can_roll_back: bool) -> Answer:
        policy, spent = self._policy, self.spent
        if spent.consecutive >= policy.max_consecutive:
            why = f"{spent.consecutive} bad steps in a row have been skipped (max_consecutive)"
            return self._rollback_answer(why, can_roll_back)
        if spent.skips >= policy.max_skips:
            return Answer("raise", f"{spent.skips} bad steps have been skipped (max_skips)", "exhausted")
        return Answer("skip", why)

    def _rollback_answer(self, why: str, can_roll_back: bool, event: StepEvent | None = None) -> Answer:
        if not can_roll_back:
            reason = "model" if event is not None and event.cause == "model" else "exhausted"
            return Answer("raise", f"{why}, and there is no snapshot to go back to: set snapshot_every", reason)
        if self.spent.rollbacks >= self._policy.max_rollbacks:
            return Answer(
                "raise", f"{why}, and {self.spent.rollbacks} rollbacks are spent (max_rollbacks)", "exhausted"
            )
        return Answer("rollback", why)

    def _memory_answer(self, can_run_again: bool, wanted: Action | None) -> Answer:
        if (wanted or self._policy.out_of_memory) not in ("split", "skip"):
            return Answer(
                "raise", "out of memory: out_of_memory='split' would halve the micro-batches", "out_of_memory"
            )
        if wanted == "skip":
            return self._skip_answer("on_instability asked for it", False)
        if not can_run_again:
            return Answer("raise", "out of memory, and the step cannot be run again as it was", "out_of_memory")
        if self.spent.splits >= self._policy.max_splits:
            return Answer("raise", f"halved {self.spent.splits} times (max_splits)", "out_of_memory")
        return Answer("split", f"micro-batches in {2 ** (self.spent.splits + 1)} parts")

    def note(self, answer: Answer) -> None:
        """The answer is carried out."""
        spent = self.spent
        if answer.action == "skip":
            spent.consecutive += 1
            spent.skips += 1
            spent.retries = 0
        elif answer.action == "rollback":
            spent.rollbacks += 1
            spent.rollbacks_in_a_row += 1
            spent.consecutive = spent.retries = spent.good_since_rollback = 0
        elif answer.action == "retry":
            spent.retries += 1
        elif answer.action == "split":
            spent.splits += 1

    def snapshots_back(self) -> int:
        """How many snapshots before the newest this rollback goes: one more for each that was not enough."""
        return self._policy.rollback_depth - 1 + max(0, self.spent.rollbacks_in_a_row - 1)

    def state_dict(self) -> dict[str, Any]:
        """What is spent."""
        return dataclasses.asdict(self.spent)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.spent = RetryBudget(**state)
