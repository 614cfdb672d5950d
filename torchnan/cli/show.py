"""Prints the findings of a log, the most serious first, and says what of it could not be read.

python -m torchnan show findings.jsonl
python -m torchnan show findings.jsonl --json | head -1
"""

from __future__ import annotations

import argparse
import io
import sys

from torchnan import findings
from torchnan.config.text import printable
from torchnan.detection.finding import Finding

NAME = "show"
HELP = "print the findings of a log"

_LEVELS = ("error", "warning", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the log, and how to print it."""
    parser.add_argument("log", help="what the option log has written")
    parser.add_argument("--json", action="store_true", help="as the lines of the log, without what cannot be read")


def execute(given: argparse.Namespace) -> int:
    """Prints the reports; those that say the same are folded."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of modules may be of any alphabet
    log = findings.read(given.log)
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, finding in enumerate(log.findings):
        alike.setdefault(_identity(finding), []).append(i)
    for places in sorted(alike.values(), key=lambda places: _LEVELS.index(log.findings[places[0]].level)):
        first = log.findings[places[0]]
        if given.json:
            print("\n".join(log.findings[i].to_json() for i in places))
            continue
        print(first)
        if len(places) > 1:
            print(f"  {'repeats':<9} {len(places) - 1} more in this log")
        print()
    print(_summary(given.log, log, len(alike)), file=sys.stderr if given.json else sys.stdout)
    return 0


def _identity(f: Finding) -> tuple[object, ...]:
    """Returns what two findings that count as the same have in common, as in a running session."""
    return (f.level, f.kind, f.origin, f.op, f.node, f.module, f.name, f.file, f.line, f.harm.name)


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
