"""Reads logs of findings: ``torchnan.findings.read("findings.jsonl").findings``.

A log may come from a killed process, a full disk, or a stranger. Readable lines are read; the others are skipped and
counted. No path from a log is opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, overload

from torchnan.config import log_kind
from torchnan.config.text import printable
from torchnan.detection.finding import Finding, times_again, told

MAX_LINE_BYTES = 2**20  # bytes, without the line break: the longest line of a finding
MAX_REPORTED_LINES = 100  # damaged lines
_RANK = re.compile(r"rank-?(\d{1,9})(?!\d)")  # in the name of a log
_DROPPED = re.compile(rb'\{"schema":\d+,"dropped":(\d{1,18})\}')  # a line that says how many were not kept
_START = b'{"schema":'  # starts every line and occurs nowhere else: quotes inside texts are escaped


@dataclasses.dataclass(frozen=True)
class UnreadableLine:
    """A line that is not a finding: its number (1-based), and the reason."""

    line: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Log:
    """The contents of a log.

    Attributes:
        findings: in the order of the log, each as the log has it last. Each is made when it is requested, so that only
            the text is held.
        damaged: the first 100 damaged lines; ``damaged_lines`` is how many there are.
        ignored_bytes: in damaged lines and in the last one, if it is incomplete.
        truncated: the last line is incomplete.
        dropped: how many more findings were counted, not kept (``max_findings``), in the sessions that have ended.
    """

    findings: Sequence[Finding]
    damaged: tuple[UnreadableLine, ...]
    damaged_lines: int
    ignored_bytes: int
    truncated: bool
    dropped: int


class LogStream:
    """The findings of a log, made one by one while it is read, in little memory whatever it holds.

    Args:
        path: the log.

    Attributes:
        damaged, damaged_lines, ignored_bytes, truncated, dropped: as in :class:`Log`, for what was read so far.
        count: how many findings have been read. A session that ends writes those again that it has found again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self.damaged: list[UnreadableLine] = []
        self.damaged_lines = self.ignored_bytes = self.count = self.dropped = 0
        self.truncated = False

    def __iter__(self) -> Iterator[Finding]:
        """Yields the findings in the order of the log. Each iteration starts again.

        Raises:
            OSError: the log cannot be opened, or is not a regular file.
        """
        return (finding for _, finding in self.lines())

    def lines(self) -> Iterator[tuple[bytes, Finding]]:
        """Yields each finding with its line."""
        self.__init__(self._path)  # type: ignore[misc]
        with _opened(self._path) as file:
            for number, (line, size, has_ended) in enumerate(_lines(file), 1):
                start = line.rfind(_START)  # a killed writer may have left a partial line in front
                part = line[start:]
                finding, reason = _parsed(part, size) if start >= 0 else (None, "it is not a finding")
                dropped = _DROPPED.fullmatch(part)
                self.dropped += int(dropped[1]) if dropped else 0
                if finding is None and dropped is None:
                    start = size
                elif start > 0:
                    reason = f"before its finding there are {start} bytes of another"
                self._note_damage(number, start, size, reason, has_ended)
                if finding is not None:
                    self.count += 1
                    yield part, finding

    def _note_damage(self, number: int, ignored: int, size: int, reason: str, has_ended: bool) -> None:
        if ignored == size and not has_ended:
            self.truncated = True
        elif ignored > 0:
            self.damaged_lines += 1
            self.damaged += [UnreadableLine(number, reason)][: MAX_REPORTED_LINES - len(self.damaged)]
        self.ignored_bytes += ignored


def read(path: str | os.PathLike[str]) -> Log:
    """Reads a log in one pass, in no more memory than its size, whatever it holds.

    Raises:
        OSError: the log cannot be opened, or is not a regular file.
    """
    stream = LogStream(path)
    whole: list[bytes] = []
    places: dict[bytes, int] = {}  # of the last line of each finding, by a digest of what stays when it is found again
    for line, finding in stream.lines():
        key = hashlib.blake2b(told(finding).encode(), digest_size=16).digest()
        if times_again(finding) and key in places:
            whole[places[key]] = line
        else:
            places[key] = len(whole)
            whole.append(line)
    damage = (tuple(stream.damaged), stream.damaged_lines, stream.ignored_bytes, stream.truncated)
    return Log(_Findings(whole), *damage, stream.dropped)


def kind_of(path: str | os.PathLike[str]) -> log_kind.LogKind | None:
    """Returns the kind of torchnan's log that a file is, from its first line; ``None`` if it is not one.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    with _opened(path) as file:
        return log_kind.of(file.read(256))


def logs_at(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the logs that belong together with this one, by rank.

    Args:
        path: a log. If its name contains ``rank-3``, the logs of the other ranks beside it belong to it. Or a folder:
            all logs of findings in it.

    Raises:
        OSError: a folder cannot be read.
    """
    given = Path(path)
    if given.is_dir():
        found = [one for one in given.glob("*.jsonl") if one.is_file() and kind_of(one) == "findings"]
    elif _RANK.search(given.name):
        pattern = re.compile(r"\d+".join(map(re.escape, _split_at_rank(given.name))))
        found = [one for one in given.parent.iterdir() if pattern.fullmatch(one.name)] if given.exists() else [given]
    else:
        found = [given]
    return sorted(found, key=lambda one: (int(match[1]) if (match := _RANK.search(one.name)) else -1, one.name))


def _split_at_rank(name: str) -> tuple[str, str]:
    start, end = _RANK.search(name).span(1)  # type: ignore[union-attr]
    return name[:start], name[end:]


def _parsed(line: bytes, size: int) -> tuple[Finding | None, str]:
    """Returns the finding of a line, or the reason why it is not one."""
    if len(line) > MAX_LINE_BYTES:
        return None, f"it has {size} bytes, and a finding is shorter"
    try:
        return Finding.from_json(line), ""
    except ValueError as error:
        return None, str(error)


class _Findings(Sequence[Finding]):
    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        if isinstance(index, slice):
            return _Findings(self._lines[index])
        return Finding.from_json(self._lines[index])


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, f"log '{printable(os.fspath(path))}' cannot be read: it is not a regular file")
        yield file


def _without_waiting(name: str, flags: int) -> int:
    """Opens a file without waiting for the writer of a pipe."""
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int, bool]]:
    """Yields lines without their breaks, cut where longer than a finding can be; their bytes; whether they ended."""
    while line := file.readline(MAX_LINE_BYTES + 2):
        size, rest = len(line), line
        while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
            size += len(rest)
        yield line.removesuffix(b"\n"), size, rest.endswith(b"\n")
