"""The recovery log: one line of strict JSON per decision, written by one rank."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

from torchnan._words import printable
from torchnan.capture import folder
from torchnan.recovery.event import StepEvent, strict


class RecoveryLog:
    """Appends lines to a file that its owner alone may read, never through a link. Every line is one write, so that
    none is ever half there.

    Args:
        path: the file. ``None``: nothing is written.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._file: int | None = None
        if path is not None:
            folder.make(Path(path).parent)
            self._file = _opened(path)

    def write(self, event: StepEvent) -> None:
        """A bad step and what was done about it."""
        self._line({"kind": "step", **event.facts()})

    def note(self, kind: str, **facts: Any) -> None:
        """Something else that explains the run: a snapshot, the end of a ramp, a capture that could not be kept."""
        self._line({"kind": kind, **strict(facts)})

    def _line(self, facts: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = json.dumps({"time": round(time.time(), 3), **facts}, allow_nan=False) + "\n"
        try:
            os.write(self._file, line.encode())
        except OSError:  # a full disk must not end the training; the event is told by other ways, too
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # some file systems say only now that a disk was full
                os.close(file)

    def __del__(self) -> None:
        self._close()


def _opened(path: str | os.PathLike[str]) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        text = f"log '{printable(os.fspath(path))}' cannot be opened (give a path that is not a link)"
        raise OSError(error.errno, text) from None
