"""Reports bad steps to user code, to the recovery log and to Python's logging."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection import signal_handlers
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement
from torchnan.training.guard.event import StepEvent
from torchnan.training.storage import atomic_folder
from torchnan.training.storage.jsonl import LOWERCASE, sanitize_text, to_json_line

logger = logging.getLogger("torchnan")

MAX_EVENTS = 100


class RecoveryLog:
    """The recovery log: one line of strict JSON per event, in a file that only its owner can read, never through a
    symbolic link.

    The file is open only while a line is written. A line is written as a whole or not at all; failures are counted.

    Args:
        path: path of the file; ``None`` writes nothing.
        failures: counts lines that could not be written.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, failures: Failures) -> None:
        self._path = None if path is None else os.path.abspath(path)
        self._failures = failures
        if self._path is not None:
            atomic_folder.make_option_dir("log", Path(self._path).parent)
            _C.append_line(self._path, "")

    def write(self, event: StepEvent) -> None:
        """Writes a bad step and the action taken."""
        with self._failures.contained("writing to the recovery log"):
            self._append({"kind": "step", **event.facts()})

    def record(self, kind: str, **facts: Any) -> None:
        """Writes another event of the run, such as a snapshot or the end of a learning rate ramp."""
        with self._failures.contained("writing to the recovery log"):
            self._append({"kind": kind, **sanitize_text(facts)})

    def _append(self, facts: dict[str, Any]) -> None:
        if self._path is not None:
            line = to_json_line({"time": round(time.time(), 3), **facts}, LOWERCASE)
            atomic_folder.make_option_dir("log", Path(self._path).parent)  # another process may have removed it since
            _C.append_line(self._path, line)


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
