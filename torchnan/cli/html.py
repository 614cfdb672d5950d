"""Writes a page of findings to share: causes, lineage as a graph, time line, modules.

Logs of several ranks are one story. The page is one file, without scripts, and loads nothing from elsewhere.

torchnan html findings.jsonl
torchnan html rank-0.jsonl -o report.html
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from torchnan.cli import finding_logs
from torchnan.config.options import OptionError
from torchnan.config.text import printable

NAME = "html"
HELP = "write a page of the findings of logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the logs and the page."""
    finding_logs.add_argument(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (default: named after the first log, .html)")


def execute(given: argparse.Namespace) -> int:
    """Writes the page.

    Raises:
        OptionError: a file is not a log of findings, or the page cannot be made.
    """
    from torchnan.pages.private_file import write_text

    output = given.output or f"{Path(os.path.abspath(given.logs[0])).stem}.html"
    logs = finding_logs.at(given.logs, output)
    try:
        from torchnan.pages import findings_page

        page = findings_page.html(logs, list(logs.logs), logs.notes)
    except ImportError as error:
        raise OptionError(str(error)) from None
    write_text(output, page)
    print(f"torchnan: the page is {printable(output)}")
    return 0
