"""The command line: a file per verb. One place turns errors into exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from torchnan.capture import CaptureError
from torchnan.cli import diagnose, doctor, extract, replay, run, show
from torchnan.config.options import OptionError, message_of
from torchnan.config.text import LONGEST_MESSAGE, printable


class _Parser(argparse.ArgumentParser):
    """Its errors quote what was typed; and half a name is no name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, LONGEST_MESSAGE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 is success, 1 a fault that was found, 2 a command that cannot be carried out."""
    parser = _Parser(prog="python -m torchnan", description="Names the operation that made the NaN.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="command")
    for command in (run, show, diagnose, replay, extract, doctor):
        verb = verbs.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(verb)
        verb.set_defaults(execute=command.execute)
    given = parser.parse_args(arguments)
    try:
        status: int = given.execute(given)
    except (OptionError, CaptureError, OSError) as error:
        print(f"torchnan: {printable(message_of(error), LONGEST_MESSAGE)}", file=sys.stderr)
        return 2
    return status
