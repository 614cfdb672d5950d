"""What the program itself wants done about a bad step."""

from __future__ import annotations

from collections.abc import Callable

from torchnan.config.options import OptionError, one_of
from torchnan.config.text import shown
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement
from torchnan.recovery.event import ACTIONS, Action, StepEvent


class CallbackRequest:
    """Asks ``on_instability``.

    Args:
        on_instability: the program's function, if it has one.
        agreement: with the other ranks, which have one too: the gravest that any of them wants is done on all.
        failures: told of a function that raises. It has wanted nothing then.
    """

    def __init__(
        self, on_instability: Callable[[StepEvent], Action | None] | None, agreement: Agreement, failures: Failures
    ) -> None:
        self._on_instability = on_instability
        self._agreement = agreement
        self._failures = failures

    def about(self, event: StepEvent) -> Action | None:
        """What is wanted, ``None`` if nothing is.

        Raises:
            OptionError: the function has returned something else.
        """
        if self._on_instability is None:
            return None
        wanted = None
        with self._failures.contained("on_instability"):
            wanted = self._on_instability(event)
        if wanted is not None and not one_of(*ACTIONS)(wanted):
            raise OptionError(
                f"on_instability returned {shown(wanted)}: it returns None or one of {', '.join(ACTIONS)}."
            )
        gravest = self._agreement.all_reduce_max(0 if wanted is None else ACTIONS.index(wanted) + 1)
        return None if gravest == 0 else ACTIONS[gravest - 1]
