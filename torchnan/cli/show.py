"""Prints a log of findings, the most serious first, or the bad steps in the log of a StepGuard.

What of it cannot be read is counted.

python -m torchnan show findings.jsonl
python -m torchnan show findings.jsonl --json | head -1
"""

from __future__ import annotations

import argparse
import io
import sys

from torchnan import findings
from torchnan.config import log_kind
from torchnan.config.options import OptionError
from torchnan.config.text import printable
from torchnan.detection import terminal
from torchnan.detection.finding import Finding

NAME = "show"
HELP = "print a log of findings, or of a StepGuard"

_LEVELS = ("error", "warning", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the log, and how to print it."""
    parser.add_argument("log", help="what the option log of detect() or of a StepGuard has written")
    parser.add_argument("--json", action="store_true", help="as the lines of the log, without what cannot be read")


def execute(given: argparse.Namespace) -> int:
    """Prints the log, whatever kind it is of.

    Raises:
        OptionError: the file is no log that this command shows; says which command does, if one does.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of modules may be of any alphabet
    kind = findings.kind_of(given.log)
    if kind == "run":
        raise OptionError(f"{given.log} is {log_kind.NAMES[kind]}: use `python -m torchnan diagnose {given.log}`.")
    return _show_bad_steps(given) if kind == "recovery" else _show_findings(given)


def _show_bad_steps(given: argparse.Namespace) -> int:
    """Prints the events of a StepGuard in their order: what was bad, its origin, and what was done."""
    from torchnan.recovery.event import text_of_log_line

    shown = unreadable = 0
    with open(given.log, "rb") as file:
        for line in file:
            text = text_of_log_line(line)
            if text is None:
                unreadable += 1
                continue
            shown += 1
            print(line.decode().rstrip("\n") if given.json else text)
    path, plural = printable(given.log), "" if shown == 1 else "s"
    ignored = f", {unreadable} line{'s' if unreadable > 1 else ''} ignored" if unreadable else ""
    print(f"{path}: {shown} event{plural}{ignored}", file=sys.stderr if given.json else sys.stdout)
    return 0


def _show_findings(given: argparse.Namespace) -> int:
    """Prints the reports; those that say the same are folded."""
    log, in_color = findings.read(given.log), terminal.wants_color(sys.stdout)
    if not log.findings and log.damaged_lines and not given.json:
        print(_summary(given.log, log, 0))
        raise OptionError(
            f"{given.log} is no log of findings: none of its lines is one. `python -m torchnan diagnose` reads the log "
            "of a run."
        )
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, finding in enumerate(log.findings):
        alike.setdefault(_identity(finding), []).append(i)
    for places in sorted(alike.values(), key=lambda places: _LEVELS.index(log.findings[places[0]].level)):
        first = log.findings[places[0]]
        if given.json:
            print("\n".join(log.findings[i].to_json() for i in places))
            continue
        print(terminal.layout(first, columns=terminal.width(), with_source=False) if in_color else first)
        if len(places) > 1:
            print(f"  {'repeats':<9} {len(places) - 1} more in this log")
        print()
    print(_summary(given.log, log, len(alike)), file=sys.stderr if given.json else sys.stdout)
    return 0


def _identity(f: Finding) -> tuple[object, ...]:
    """Returns what two findings that count as the same have in common, as in a running session."""
    own = next(((frame.file, frame.line) for frame in f.stack if not _is_installed(frame.file)), None)
    return (f.level, f.kind, f.origin, f.op, f.node, f.module, f.name, f.file, f.line, own, f.harm.name)


def _is_installed(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file


def _summary(path: str, log: findings.Log, different: int) -> str:
    found, path = len(log.findings), printable(path)
    plural = "s" if found > 1 else ""
    lines = [f"{path}: {found} finding{plural}, {different} different" if found else f"{path}: no findings"]
    if log.ignored_bytes:
        lines.append(f"ignored: {log.ignored_bytes} bytes")
        lines += [f"  line {damage.line}: {damage.reason}" for damage in log.damaged]
    if log.damaged_lines > len(log.damaged):
        lines.append(f"  and {log.damaged_lines - len(log.damaged)} more lines")
    if log.truncated:
        lines.append("  the last line is not whole")
    return "\n".join(lines)
