"""The recovery log: one line of strict JSON per decision, written by one rank."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from torchnan._load import _C
from torchnan.detection.containment import Failures
from torchnan.recovery.event import StepEvent
from torchnan.storage import atomic_folder
from torchnan.storage.jsonl import LOWERCASE, sanitize_text, to_json_line


class RecoveryLog:
    """Appends lines to a file that its owner alone may read, never through a link; it is open for as long as a line
    takes. A line is there as a whole or not at all; one that cannot be written is counted.

    Args:
        path: the file. ``None``: nothing is written.
        failures: told of the lines that could not be written.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, failures: Failures) -> None:
        self._path = None if path is None else os.path.abspath(path)
        self._failures = failures
        if self._path is not None:
            atomic_folder.make(Path(self._path).parent)
            _C.append_line(self._path, "")

    def write(self, event: StepEvent) -> None:
        """A bad step and what was done about it."""
        with self._failures.contained("writing to the recovery log"):
            self._line({"kind": "step", **event.facts()})

    def note(self, kind: str, **facts: Any) -> None:
        """Something else that explains the run: a snapshot, the end of a ramp, a capture that could not be kept."""
        with self._failures.contained("writing to the recovery log"):
            self._line({"kind": kind, **sanitize_text(facts)})

    def _line(self, facts: dict[str, Any]) -> None:
        if self._path is not None:
            line = to_json_line({"time": round(time.time(), 3), **facts}, LOWERCASE)
            _C.append_line(self._path, line)
