"""Asks the user's ``on_instability`` callback for an action."""

from __future__ import annotations

from collections.abc import Callable

from torchnan.config.options import OptionError, one_of
from torchnan.config.policy import ACTIONS, Action
from torchnan.config.text import brief
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement
from torchnan.training.guard.event import StepEvent


class CallbackRequest:
    """Calls ``on_instability`` and agrees with the other ranks on the action.

    Args:
        on_instability: the user's callback, or ``None``.
        agreement: agreement with the other ranks, with or without a callback: the gravest action of any is taken.
        failures: counts exceptions of the callback, which then requests nothing.
    """

    def __init__(
        self, on_instability: Callable[[StepEvent], Action | None] | None, agreement: Agreement, failures: Failures
    ) -> None:
        self._on_instability = on_instability
        self._agreement = agreement
        self._failures = failures

    def ask(self, event: StepEvent) -> Action | None:
        """Returns the requested action, or ``None``. Collective.

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
