"""Runs a program under detection, like TORCHNAN=raise in front of it.

torchnan run train.py --lr 1e-3
torchnan run --action warn --log findings.jsonl train.py
torchnan run -m torch.distributed.run --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import os
import re
import sys

from torchnan import startup
from torchnan.config.detection_options import OLD_NAMES, DetectionOptions
from torchnan.config.environment import PAGE, is_of_detection
from torchnan.config.options import Option, OptionError, read

NAME = "run"
HELP = "run a program under detection"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every option of detection, and the program with its arguments."""
    for name, option in DetectionOptions.options().items():
        parser.add_argument(_flag(name), metavar="VALUE", help=_help(option))
        if option.default is True:
            off = f"the same as {_flag(name)} 0"
            parser.add_argument(f"--no-{_flag(name)[2:]}", dest=name, action="store_const", const="0", help=off)
    for name in OLD_NAMES:
        parser.add_argument(_flag(name), help=argparse.SUPPRESS)
    parser.add_argument("--html", metavar="FILE", help="write a page of the findings when the program ends")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, default=[], help="a module and its arguments")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a script and its arguments")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(option: Option) -> str:
    default = int(option.default) if isinstance(option.default, bool) else option.default
    default = "none" if default in (None, ()) else default
    meaning = re.sub(r":\w+:`(?:torchnan\.)?(\w+)`", r"\1", option.meaning).replace("``", "")
    return f"{meaning}. It takes {option.accepts_text} (default: {default})"


def execute(given: argparse.Namespace) -> int:
    """Replaces this process by the program, with the variables set."""
    program = ["-m", *given.module] if given.module else given.script
    if not program:
        raise OptionError("nothing to run: give a script, or -m and a module.")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise OptionError(
            "TORCH_DEVICE_BACKEND_AUTOLOAD is off, so `import torch` would not switch detection on. Unset it, or call "
            "torchnan.set_detect(True) in the program."
        )
    variables = {}
    for name, option in {**DetectionOptions.options(), **OLD_NAMES}.items():
        if (text := getattr(given, name)) is not None:
            read(f"{_flag(name)} ", option, text)  # so that an error quotes the argument as it was given
            variables[f"TORCHNAN_{name.upper()}"] = text
    if given.html is not None:
        variables[PAGE] = given.html
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCHNAN" and not is_of_detection(name)
    }
    environment.update(variables, TORCHNAN="1")
    startup.options_from(environment)  # so that errors appear here rather than there
    os.execve(sys.executable, [sys.executable, *program], environment)
