"""Writes the monitor's log: strict JSON Lines in a rotating set of files."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
from pathlib import Path
from typing import Any

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.text import brief
from torchnan.training.monitor.row import VERSION
from torchnan.training.storage import atomic_folder
from torchnan.training.storage.jsonl import CAMELCASE, to_json_line

LOG_HEADER = b'{"torchnan": "run"'


class MonitorLog:
    """Appends lines to a file that only its owner can read, never through a symbolic link.

    Each line is written by one call, when it is made, so a program that is killed loses at most the line it was
    writing.

    A file that has reached its size becomes ``<path>.1``, the former ``<path>.1`` becomes ``<path>.2``, and so on; with
    ``parts``, the oldest is removed. Every file begins with a line that describes the run. A file or a folder that was
    removed is made again.

    Args:
        path: the newest file.
        max_bytes: size limit of one file.
        parts: maximum number of files, including the newest; ``None`` keeps all.

    Raises:
        OptionError: the file exists and is not a monitor log; it is left unchanged.
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int, parts: int | None) -> None:
        self._path = Path(os.path.abspath(path))
        self._max_bytes = max_bytes
        self._parts = parts
        self._continued = ""  # the first line of each further file of the run
        atomic_folder.make_option_dir("log", self._path.parent)
        self._check_is_monitor_log()
        self._bytes = self._append("")

    def _check_is_monitor_log(self) -> None:
        """Raises if the file does not start like a log. A partial header is accepted: a program may be killed."""
        if self._path.is_symlink() or not self._path.is_file():
            return  # new; or it cannot be read, which opening it reports
        with open(self._path, "rb") as file:
            start = file.read(len(LOG_HEADER))
        if not LOG_HEADER.startswith(start):
            raise OptionError(
                f"log={brief(self._path)} cannot be used: the file exists and is not the log of a monitor. "
                "Use another name, or move the file away."
            )

    def start(self, about: dict[str, Any]) -> None:
        """Writes the first line of a run, or of its continuation after a restart.

        Args:
            about: describes the run: ``dtype``, ``groups``, ``meta``.
        """
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        header = {"torchnan": "run", "version": VERSION, "started": now, **about}
        self._continued = to_json_line({**header, "continued": True}, CAMELCASE)
        cut = "\n" if self._ends_mid_line() else ""  # the incomplete line of a killed program
        self._bytes = self._append(cut + to_json_line(header, CAMELCASE))

    def write(self, facts: dict[str, Any]) -> None:
        """Appends a line; rotates the files first if it does not fit."""
        line = to_json_line(facts, CAMELCASE)
        if self._bytes + len(line) > self._max_bytes:
            self._rotate()
        self._bytes = self._append(line, self._continued)

    def _append(self, line: str, first: str = "") -> int:
        """Appends a line, after ``first`` if the file is new. Returns the bytes of the file."""
        path = str(self._path)
        try:
            return _C.append_line(path, line, first)
        except FileNotFoundError:  # another process has removed the folder
            atomic_folder.make_option_dir("log", self._path.parent)
            return _C.append_line(path, line, first)

    def _rotate(self) -> None:
        """Renames the files, from the oldest on, which is overwritten if it is one too many."""
        older = 1
        while Path(f"{self._path}.{older}").exists():
            older += 1
        last = older if self._parts is None else min(older, self._parts - 1)
        names = [self._path, *(Path(f"{self._path}.{i}") for i in range(1, last + 1))]
        for newer, following in reversed(list(itertools.pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(following)

    def _ends_mid_line(self) -> bool:
        with open(self._path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            return file.read(1) not in (b"", b"\n")
