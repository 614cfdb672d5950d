"""Prints logs of findings, the most serious first, or the bad steps in the log of a StepGuard.

Logs of several ranks are one story: a value that one rank made and others received is printed once. Unreadable parts of
a log are counted.

torchnan show findings.jsonl
torchnan show rank-0.jsonl
torchnan show guard-0.jsonl guard-1.jsonl
torchnan show findings.jsonl --json | head -1
torchnan show findings.jsonl --format=github
torchnan show findings.jsonl --format=sarif > findings.sarif
torchnan show findings.jsonl --fail-on warning

The exit status is 0, or 1 if there is a finding of a level that --fail-on names or of a more serious one, or 2 if a log
cannot be read.
"""

from __future__ import annotations

import argparse
import io
import os
import sys

from torchnan import findings
from torchnan.cli import code_host, finding_logs
from torchnan.config import log_kind
from torchnan.config.options import OptionError
from torchnan.config.text import counted, printable
from torchnan.detection import terminal
from torchnan.detection.finding import LEVELS
from torchnan.distributed.incidents import Incident, Story

NAME = "show"
HELP = "print logs of findings, or of a StepGuard"

FORMATS = ("github", "sarif")
NEVER = "never"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the logs and the format."""
    finding_logs.add_argument(parser)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="as lines of the log, without unreadable ones")
    forms.add_argument("--format", choices=FORMATS, help="annotations of GitHub Actions, or a SARIF document")
    parser.add_argument(
        "--fail-on",
        choices=(*LEVELS[:2], NEVER),
        default=NEVER,
        help=f"end with status 1 if a finding is of this level, or more serious (default: {NEVER})",
    )


def execute(given: argparse.Namespace) -> int:
    """Prints the logs, of whatever kind.

    Raises:
        OptionError: a file is not a log that this command shows; names the command that does, if there is one.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of modules may use any alphabet
    bad_steps = [log for log in given.logs if not os.path.isdir(log) and findings.kind_of(log) == "recovery"]
    if bad_steps == given.logs:
        _refuse_options(bad_steps[0], given)
        for log in bad_steps:
            _show_bad_steps(log, as_json=given.json)
        return 0
    logs = finding_logs.at(given.logs)
    story = _show_annotations(logs, given.format) if given.format else _show_findings(logs, as_json=given.json)
    failing = () if given.fail_on == NEVER else LEVELS[: LEVELS.index(given.fail_on) + 1]
    return int(any(incident.first.level in failing for incident in story))


def _refuse_options(log: str, given: argparse.Namespace) -> None:
    """Raises OptionError for options that the log of a StepGuard does not have."""
    refused = f"--format={given.format}" if given.format else f"--fail-on {given.fail_on}"
    if given.format or given.fail_on != NEVER:
        raise OptionError(
            f"{refused} cannot be used with {log}: it is {log_kind.NAMES['recovery']}, and takes a log of findings."
        )


def _show_bad_steps(log: str, *, as_json: bool) -> None:
    """Prints the events of a StepGuard in order: the fault, its origin, and the action taken."""
    from torchnan.training.guard.event import text_of_log_line

    shown = unreadable = 0
    with open(log, "rb") as file:
        for line in file:
            text = text_of_log_line(line)
            if text is None:
                unreadable += 1
                continue
            shown += 1
            print(line.decode().rstrip("\n") if as_json else text)
    ignored = f", {counted(unreadable, 'line')} ignored" if unreadable else ""
    print(f"{printable(log)}: {counted(shown, 'event')}{ignored}", file=sys.stderr if as_json else sys.stdout)


def _show_findings(logs: finding_logs.FindingLogs, *, as_json: bool) -> list[Incident]:
    """Prints the reports, one for each cause, which it returns."""
    story, in_color = Story(), terminal.wants_color(sys.stdout)
    for finding in logs:
        story.add(finding)
    found = story.incidents()
    for level in LEVELS if as_json else ():
        if level in {incident.first.level for incident in found}:
            for finding in logs:
                if finding.level == level:
                    print(finding.to_json())
    for incident in () if as_json else found:
        first = incident.first
        print(terminal.layout(first, columns=terminal.width(), with_source=False) if in_color else first)
        if incident.again:
            print(f"  {'repeats':<9} {len(incident.again)} more in {'this log' if len(logs.logs) == 1 else 'the logs'}")
        if incident.elsewhere:
            print(f"  {'ranks':<9} {incident.elsewhere}")
        print()
    print(_summary(logs, story.count, len(found)), file=sys.stderr if as_json else sys.stdout)
    return found


def _show_annotations(logs: finding_logs.FindingLogs, form: str) -> list[Incident]:
    """Prints the incidents for a code host, and returns them."""
    story = Story()
    for finding in logs:
        story.add(finding)
    found = story.incidents()
    text = code_host.github(found) if form == "github" else code_host.sarif(found)
    if text:
        print(text)
    print(_summary(logs, story.count, len(found)), file=sys.stderr)
    return found


def _summary(logs: finding_logs.FindingLogs, found: int, distinct: int) -> str:
    counts = {0: "no findings", 1: "1 finding"}.get(found, f"{found} findings, {distinct} distinct")
    return "\n".join([f"{logs.names}: {counts}", *logs.notes])
