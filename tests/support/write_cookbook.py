"""Runs the programs of docs/why_nan.md, and writes their reports into the page.

python -m tests.support.write_cookbook
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

import torchnan
from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "why_nan.md"
SECTION = re.compile(r"## (\d+)\. ([^\n]+)\n(.*?)```python\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL)


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def report_of(program: str) -> str:
    """Returns the report of the first finding of a program, without stacks; empty if there is none."""
    torch.manual_seed(0)
    variables: dict[str, object] = {}  # alive until detection ends, as those of a script are
    with tempfile.TemporaryDirectory() as folder, _working_in(folder):
        Path("train.py").write_text(program)
        try:
            with torchnan.detect():
                variables.update(runpy.run_path("train.py"))

        except torchnan.NonFiniteError as error:
            return re.split(r"\n  (?:stack|backward|forward) ", str(error))[0] + "\n"
    return ""


def render(page: str) -> str:
    """Returns the page with what its programs report now."""

    def with_report(section: re.Match[str]) -> str:
        start = section.start(5) - section.start()
        end = section.end(5) - section.start()
        return section[0][:start] + report_of(section[4]) + section[0][end:]

    return SECTION.sub(with_report, page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
