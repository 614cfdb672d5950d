"""Writes the operation at the origin of a captured step as a Python file of a few lines, with its tensors beside it.

torchnan extract captures/rank-0-step-00000047
torchnan extract captures/rank-0-step-00000047 --out bug_report
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchnan.training.capture import load_capture
from torchnan.training.capture.reproducer import write_example

NAME = "extract"
HELP = "write the bad operation alone, as a small program"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the capture and the output folder."""
    parser.add_argument("capture", help="folder of the capture")
    parser.add_argument("--out", help="folder to write into (default: CAPTURE/extract)")


def execute(given: argparse.Namespace) -> int:
    """Prints the program's path and its text."""
    capture = load_capture(given.capture)
    program = write_example(capture, Path(given.out) if given.out else Path(given.capture) / "extract")
    print(f"{program}\n\n{program.read_text()}", end="")
    return 0
