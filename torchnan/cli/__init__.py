"""The command line: a module per command. One place turns errors into exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from torchnan.capture import CaptureError
from torchnan.cli import diagnose, doctor, extract, replay, run, show
from torchnan.config.options import OptionError, message_of
from torchnan.config.text import MAX_MESSAGE_BYTES, printable


class _Parser(argparse.ArgumentParser):
    """A parser that escapes what its errors quote, and accepts no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, MAX_MESSAGE_BYTES))


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
        print(f"torchnan: {printable(message_of(error), MAX_MESSAGE_BYTES)}", file=sys.stderr)
        return 2
    return status
