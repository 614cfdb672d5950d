"""The recovery log: one line of strict JSON per event, written by one rank."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from torchnan._load import _C
from torchnan.detection.containment import Failures
from torchnan.training.guard.event import StepEvent
from torchnan.training.storage import atomic_folder
from torchnan.training.storage.jsonl import LOWERCASE, sanitize_text, to_json_line


class RecoveryLog:
    """Appends lines to a file that only its owner can read, never through a symbolic link.

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
