"""Reads the logs that a command is given: of one process, of each rank, or a folder of them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence

from torchnan import findings
from torchnan.config import log_kind
from torchnan.config.options import OptionError
from torchnan.config.text import command_line, printable
from torchnan.detection.finding import Finding

_COMMANDS = {"run": "diagnose", "recovery": "show"}


@dataclasses.dataclass(frozen=True)
class FindingLogs:
    """The contents of logs, by path."""

    logs: dict[str, findings.Log]

    def __iter__(self) -> Iterator[Finding]:
        """Yields the findings of all logs; each is made when it is asked for."""
        return (finding for log in self.logs.values() for finding in log.findings)

    @property
    def names(self) -> str:
        """The log, or how many there are."""
        paths = [printable(path) for path in self.logs]
        return paths[0] if len(paths) == 1 else f"{len(paths)} logs, {paths[0]} to {paths[-1]}"

    @property
    def notes(self) -> list[str]:
        """What of the logs could not be read, a line each."""
        notes = []
        for path, log in self.logs.items():
            notes += [f"{printable(path)}:"] if len(self.logs) > 1 and log.ignored_bytes else []
            notes += _damage(log)
        return notes


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the logs."""
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="what the option log of detect() has written; of several ranks one of their logs, or the folder of them",
    )


def read(paths: Sequence[str]) -> FindingLogs:
    """Reads the logs, with those of other ranks that lie beside them.

    Raises:
        OptionError: there is not a log of findings at a path; says which command reads what is there.
        OSError: a log cannot be read.
    """
    logs = {}
    for path in paths:
        found = [str(one) for one in findings.logs_at(path)]
        if not found:
            raise OptionError(f"{path} has no log of findings in it: these are called *.jsonl.")
        for one in found:
            if (kind := findings.kind_of(one)) in _COMMANDS:
                raise OptionError(f"{one} is {log_kind.NAMES[kind]}: use `{command_line(_COMMANDS[kind], one)}`.")
            logs[one] = findings.read(one)
    for path, log in logs.items():
        if not log.findings and log.damaged_lines:
            raise OptionError(
                f"{path} is not a log of findings: none of its lines is one. `torchnan diagnose` reads the log of a "
                "run."
            )
    return FindingLogs(logs)


def _damage(log: findings.Log) -> list[str]:
    if not log.ignored_bytes:
        return []
    lines = [f"ignored: {log.ignored_bytes} bytes"]
    lines += [f"  line {damage.line}: {damage.reason}" for damage in log.damaged]
    if log.damaged_lines > len(log.damaged):
        more = log.damaged_lines - len(log.damaged)
        lines.append(f"  and {more} more line{'s' if more > 1 else ''}")
    if log.truncated:
        lines.append("  the last line is not whole")
    return lines
