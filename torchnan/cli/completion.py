"""Prints a script that lets a shell complete torchnan's commands, options and files.

torchnan completion bash > ~/.local/share/bash-completion/completions/torchnan
torchnan completion zsh > "${fpath[1]}/_torchnan"
torchnan completion fish > ~/.config/fish/completions/torchnan.fish
"""

from __future__ import annotations

import argparse

from torchnan.config.options import OptionError

NAME = "completion"
HELP = "print the completions of a shell"

SHELLS = ("bash", "zsh", "fish")
_FILES = ("capture", "html", "log", "logs", "out", "output", "post_mortem", "run", "script", "thresholds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")


def execute(given: argparse.Namespace) -> int:
    """Prints the script.

    Raises:
        OptionError: shtab, which generates it, is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise OptionError("completions need shtab: pip install torchnan[completion]") from None
    _complete_files(given.parser, shtab.FILE)
    print(shtab.complete(given.parser, shell=given.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser, files: object) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _complete_files(verb, files)
        elif action.dest in _FILES:
            action.complete = files  # type: ignore[attr-defined]
