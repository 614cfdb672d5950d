"""The command line: a module per command. One place turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from torchnan.cli import completion, diagnose, doctor, extract, html, replay, run, show
from torchnan.config.options import OptionError, message_of, suggest
from torchnan.config.text import MAX_MESSAGE_BYTES, printable
from torchnan.training.capture import CaptureError

COMMANDS = (run, show, html, diagnose, replay, extract, doctor, completion)

_ENDED_BY = 128  # plus the number of a signal: the status of a program that it has ended, as in shells

_EXAMPLES = """\
torchnan run train.py --lr 1e-3    end train.py where a NaN does harm, and say what made it
torchnan html findings.jsonl       write a page of the findings of a log
torchnan COMMAND -h                the arguments of a command, with an example
"""


class _Parser(argparse.ArgumentParser):
    """A parser that escapes the text quoted in its errors, and accepts no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, MAX_MESSAGE_BYTES))


def _refuse_command(parser: argparse.ArgumentParser, given: str) -> NoReturn:
    """Ends with an error that suggests the intended command: `run`, if the name is that of a program."""
    if given.endswith(".py") or os.path.isfile(given):
        parser.error(f"'{given}' is a program, not a command. Run it under detection: torchnan run {given}")
    known = [command.NAME for command in COMMANDS]
    parser.error(f"there is no command '{given}'.{suggest(given, known)} Commands: {', '.join(known)}.")


def _refuse(parser: argparse.ArgumentParser, argument: str) -> NoReturn:
    """Ends with an error that lists the options of a command, the most similar one first."""
    name = argument.partition("=")[0]
    actions = parser._option_string_actions.items()
    options = [text for text, action in actions if text.startswith("--") and action.help != argparse.SUPPRESS]
    parser.error(f"there is no argument '{name}'.{suggest(name, options)} Options: {', '.join(options)}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 for success, 1 if a fault was found, 2 for a command that cannot be carried out, 130 and 141 as after
        Ctrl-C and a closed pipe.
    """
    parser = _Parser(
        prog="torchnan",
        description="Names the operation that made the NaN.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"torchnan {doctor.build()}")
    verbs = parser.add_subparsers(dest="verb", metavar="command")
    for command in COMMANDS:
        verb = verbs.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(verb)
        verb.set_defaults(execute=command.execute, parser=parser)
    arguments = sys.argv[1:] if arguments is None else arguments
    name = next((text for text in arguments if not text.startswith("-")), None)
    if name is not None and name not in verbs.choices:
        _refuse_command(parser, name)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse(verbs.choices.get(given.verb, parser), unknown[0])
    if given.verb is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = given.execute(given)
        sys.stdout.flush()  # here, because a closed pipe is handled here
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _ENDED_BY + signal.SIGPIPE
    except KeyboardInterrupt:
        return _ENDED_BY + signal.SIGINT
    except (OptionError, CaptureError, OSError) as error:
        print(f"torchnan: {printable(message_of(error), MAX_MESSAGE_BYTES)}", file=sys.stderr)
        return 2
    return status
