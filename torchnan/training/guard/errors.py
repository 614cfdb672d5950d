"""TrainingStopped, and the exit codes from which a scheduler knows why training stopped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchnan.detection.finding import Finding
    from torchnan.training.guard.event import StepEvent

# One per reaction that a scheduler should have. Above what shells, Python and signals use, and below 128.
EXIT_CODES = {
    "persistent": 80,  # the same step fails the same way: restarting does not help; fix the code or the data
    "transient": 81,  # finite when run again: restart on other hardware
    "model": 82,  # the weights are bad and there is no snapshot: restart from an older checkpoint
    "exhausted": 83,  # all budgets are used up: read the recovery log before restarting
    "out_of_memory": 84,  # restart with a smaller batch
}


class TrainingStopped(RuntimeError):
    """Raised for a bad step that the policy cannot recover from. The step has not been applied.

    Attributes:
        reason: a name of :data:`EXIT_CODES`.
        exit_code: its exit code.
        event: the bad step; ``None`` from :class:`torchnan.NaNDetector`.
        finding: the origin, if the replay found it.
    """

    def __init__(self, text: str, reason: str = "persistent", event: StepEvent | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.exit_code = EXIT_CODES[reason]
        self.event = event

    @property
    def finding(self) -> Finding | None:
        """The origin, if the replay found it."""
        return None if self.event is None else self.event.finding

    def __reduce__(self) -> tuple[type[TrainingStopped], tuple[str, str]]:
        return type(self), (str(self), self.reason)


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Exits with a code of :data:`EXIT_CODES` if training stops inside, with the report on stderr.

    At the end, it waits for the verdict on the last step of each guard.

    Example::

        with torchnan.recovery.exit_codes():
            train()
    """
    try:
        yield
        from torchnan.training.guard.late_steps import settle_all  # which imports this

        settle_all()
    except TrainingStopped as stopped:
        print(stopped, file=sys.stderr)
        raise SystemExit(stopped.exit_code) from stopped
