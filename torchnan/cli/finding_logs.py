"""Reads the logs given to a command: of one process, of each rank, or a folder of them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence

from torchnan import findings
from torchnan.config import log_kind
from torchnan.config.options import OptionError
from torchnan.config.text import command_line, counted, printable
from torchnan.detection.finding import Finding

_COMMANDS = {"run": "diagnose", "recovery": "show"}


@dataclasses.dataclass(frozen=True)
class FindingLogs:
    """The logs, by path. They are not held, but read again each time that their findings are requested."""

    logs: dict[str, findings.LogStream]

    def __iter__(self) -> Iterator[Finding]:
        """Yields the findings of all logs.

        Raises:
            OptionError: a log has lines, but none of them is a finding.
            OSError: a log cannot be read.
        """
        for path, log in self.logs.items():
            yield from log
            if not log.count and log.damaged_lines:
                raise OptionError(
                    f"{path} is not a log of findings: none of its lines is one. `torchnan diagnose` reads the log of "
                    "a run."
                )

    @property
    def names(self) -> str:
        """The name of the log, or the number of logs."""
        paths = [printable(path) for path in self.logs]
        return paths[0] if len(paths) == 1 else f"{len(paths)} logs, {paths[0]} to {paths[-1]}"

    @property
    def notes(self) -> Iterator[str]:
        """Yields a line for each part of the logs that is not shown; call it after they have been read."""
        for path, log in self.logs.items():
            if len(self.logs) > 1 and log.ignored_bytes:
                yield f"{printable(path)}:"
            yield from _damage(log)
        if dropped := sum(log.dropped for log in self.logs.values()):
            yield f"{counted(dropped, 'more finding')} counted, not kept (max_findings)"


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the logs."""
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="a log written by detect(log=...); for several ranks, one of their logs, or their folder",
    )


def at(paths: Sequence[str], page: str = "") -> FindingLogs:
    """Returns the logs at some paths, together with those of other ranks beside them.

    Args:
        paths: of logs or folders.
        page: the path of the page that is to be made of them, for messages.

    Raises:
        OptionError: the file at a path is not a log of findings; names the command that reads it.
        OSError: a log cannot be read.
    """
    logs = {}
    for path in paths:
        found = [str(one) for one in findings.logs_at(path)]
        if not found:
            raise OptionError(f"{path} contains no log of findings: their names end with .jsonl.")
        for one in found:
            if (kind := findings.kind_of(one)) in _COMMANDS:
                to_page = ("--html", page) if page and kind == "run" else ()
                command = command_line(_COMMANDS[kind], one, *to_page)
                apart = ", without the other logs" if len(paths) > 1 else ""
                raise OptionError(f"{one} is {log_kind.NAMES[kind]}: use `{command}`{apart}.")
            logs[one] = findings.LogStream(one)
    return FindingLogs(logs)


def _damage(log: findings.LogStream) -> list[str]:
    if not log.ignored_bytes:
        return []
    lines = [f"ignored: {log.ignored_bytes} bytes"]
    lines += [f"  line {damage.line}: {damage.reason}" for damage in log.damaged]
    if log.damaged_lines > len(log.damaged):
        more = log.damaged_lines - len(log.damaged)
        lines.append(f"  and {counted(more, 'more line')}")
    if log.truncated:
        lines.append("  the last line is incomplete")
    return lines
