"""The monitor's log: lines of strict JSON in files of a bounded size, of which the oldest goes."""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path
from typing import Any

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.text import shown
from torchnan.monitor.row import VERSION
from torchnan.storage import atomic_folder
from torchnan.storage.jsonl import CAMELCASE, to_json_line

LOG_HEADER = b'{"torchnan": "run"'


class MonitorLog:
    """Appends lines to a file that its owner alone may read, never through a link. Each line is written as a whole, in
    one call, when it is made: a program that is killed has lost none but the one it was just writing.

    A file that has reached its size becomes ``<path>.1``, what was ``<path>.1`` becomes ``<path>.2``, and so on; the
    oldest of ``parts`` files is removed. Every file begins with a line that says what the run is.

    Args:
        path: the newest file.
        max_bytes: of one file.
        parts: files, with the newest.

    Raises:
        OptionError: the file is something else; it is left as it is.
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int, parts: int) -> None:
        self._path = Path(os.path.abspath(path))
        self._max_bytes = max_bytes
        self._parts = parts
        self._header: dict[str, Any] = {}
        atomic_folder.make(self._path.parent)
        self._check_is_monitor_log()
        _C.append_line(os.fspath(self._path), "")
        self._bytes = self._path.stat().st_size

    def _check_is_monitor_log(self) -> None:
        """Raises for a file that does not begin as a log, if only in part: a program may be killed at any moment."""
        if self._path.is_symlink() or not self._path.is_file():
            return  # refused where it is opened, or new
        with open(self._path, "rb") as file:
            begins = file.read(len(LOG_HEADER))
        if not LOG_HEADER.startswith(begins):
            raise OptionError(
                f"log={shown(self._path)} cannot be used: there is a file already, which is no log of a monitor. "
                "Give it another name, or move the file away."
            )

    def start(self, about: dict[str, Any]) -> None:
        """The run begins, or goes on after a restart.

        Args:
            about: what it is: ``dtype``, ``groups``, ``meta``.
        """
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._header = {"torchnan": "run", "version": VERSION, "started": now, **about}
        cut = "\n" if self._ends_in_a_line() else ""  # of a program that was killed
        self._append(cut + to_json_line(self._header, CAMELCASE))

    def write(self, facts: dict[str, Any]) -> None:
        """One more line."""
        line = to_json_line(facts, CAMELCASE)
        if self._bytes + len(line) > self._max_bytes:
            self._rotate()
        self._append(line)

    def _append(self, line: str) -> None:
        _C.append_line(os.fspath(self._path), line)
        self._bytes += len(line)

    def _rotate(self) -> None:
        """From the oldest on: that one is overwritten."""
        names = [self._path, *(Path(f"{self._path}.{i}") for i in range(1, self._parts))]
        for older, newer in zip(reversed(names), list(reversed(names))[1:], strict=False):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._bytes = 0
        self._append(to_json_line({**self._header, "continued": True}, CAMELCASE))

    def _ends_in_a_line(self) -> bool:
        with open(self._path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            return file.read(1) not in (b"", b"\n")
