"""Reports bad steps to user code, to the recovery log and to Python's logging."""

from __future__ import annotations

import json
import logging
import os
import socket

import torch

from torchnan.detection import signal_handlers
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.log import RecoveryLog

logger = logging.getLogger("torchnan")

MAX_EVENTS = 100


class Reporter:
    """Reports each event once, on the first rank and on the rank where it happened.

    Args:
        model: the model whose device events name.
        agreement: agreement with the other ranks, which report the same events.
        path: path of the recovery log, which the first rank writes; ``None`` for none.
        failures: counts lines that could not be written.

    Attributes:
        log: the recovery log.
        events: the last 100 events.

    Raises:
        OSError: the log cannot be written.
    """

    def __init__(
        self, model: torch.nn.Module, agreement: Agreement, path: str | os.PathLike[str] | None, failures: Failures
    ) -> None:
        self.log = RecoveryLog(path if agreement.rank == 0 else None, failures)
        self.events: list[StepEvent] = []
        self._model = model
        self._agreement = agreement

    def report(self, event: StepEvent) -> None:
        """Reports an event once its action has been carried out. Collective."""
        mine = event.rank == self._agreement.global_rank
        source = self._agreement.lowest_rank_with_max(int(mine))
        device = next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))
        location = json.dumps([socket.gethostname(), str(device)])
        event.host, event.device = json.loads(self._agreement.broadcast_text(location, source))
        self.events = [*self.events, event][-MAX_EVENTS:]
        self.log.write(event)
        if self._agreement.rank == 0 or mine:
            with signal_handlers.suppressed():  # a log handler of the user's may fail
                logger.warning("%s", event)
