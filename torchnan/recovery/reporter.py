"""Bad steps are told: to the program, to the recovery log, and to whoever reads along."""

from __future__ import annotations

import contextlib
import logging

import torch

from torchnan.distributed.agreement import Agreement
from torchnan.recovery.event import StepEvent, host_and_device
from torchnan.recovery.log import RecoveryLog

logger = logging.getLogger("torchnan")

MAX_EVENTS = 100


class Reporter:
    """Tells each event once, on the first rank and on the one that it is of.

    Args:
        agreement: with the other ranks, which tell the same.
        log: the recovery log.

    Attributes:
        events: the last 100.
    """

    def __init__(self, agreement: Agreement, log: RecoveryLog) -> None:
        self.events: list[StepEvent] = []
        self._agreement = agreement
        self._log = log

    def tell(self, event: StepEvent, device: torch.device) -> None:
        """Something has been done about it, on this device."""
        mine = event.rank == self._agreement.global_rank
        source = self._agreement.lowest_rank_with_max(int(mine))
        event.host, event.device = self._agreement.broadcast_text(host_and_device(device), source).rsplit(" ", 1)
        self.events = [*self.events, event][-MAX_EVENTS:]
        self._log.write(event)
        if self._agreement.rank == 0 or mine:
            with contextlib.suppress(Exception):  # a handler of the program's may fail
                logger.warning("%s", event)
