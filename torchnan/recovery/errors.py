"""How a run ends that cannot go on, so that what started it can tell why."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchnan.detection.finding import Finding
    from torchnan.recovery.event import StepEvent

# By what a scheduler should do about it. Above what shells, Python and signals use, below 128.
EXIT_CODES = {
    "persistent": 80,  # the same step fails the same way: starting again does not help, mend the program or the data
    "transient": 81,  # finite when run again: start again, on other hardware
    "model": 82,  # the weights are bad and there is no snapshot: start again from an older checkpoint
    "exhausted": 83,  # every budget is spent: look at the recovery log before starting again
    "out_of_memory": 84,  # start again with less in a batch
}


class TrainingStopped(RuntimeError):
    """A bad step that the policy has no answer to. Nothing of the step has been applied.

    Attributes:
        reason: one of the names of :data:`EXIT_CODES`.
        exit_code: the code for it.
        event: what happened; ``None`` from :class:`torchnan.NaNDetector`.
        finding: the origin, if the replay has found it.
    """

    def __init__(self, text: str, reason: str = "persistent", event: StepEvent | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.exit_code = EXIT_CODES[reason]
        self.event = event

    @property
    def finding(self) -> Finding | None:
        """The origin, if the replay has found it."""
        return None if self.event is None else self.event.finding

    def __reduce__(self) -> tuple[type[TrainingStopped], tuple[str, str]]:
        return type(self), (str(self), self.reason)


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Ends the program with the code of :data:`EXIT_CODES` if training stops inside, its report on stderr.

    Example::

        with torchnan.recovery.exit_codes():
            train()
    """
    try:
        yield
    except TrainingStopped as stopped:
        print(stopped, file=sys.stderr)
        raise SystemExit(stopped.exit_code) from stopped
