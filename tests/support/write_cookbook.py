"""Runs the programs of docs/why_nan.md, and writes their reports, and the remedies that work, into the page.

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
SECTION = re.compile(
    r"## (\d+)\. ([^\n]+)\n(.*?)```python\n(.*?)```\n\n```text\n(.*?)```\n"
    r"\n(\*\*Remedy\.\*\*.*?)\n\n```text\n(.*?)```\n",
    re.DOTALL,
)


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


def remedies_of(program: str) -> str:
    """Returns what the remedies that are tried on a program do."""

    def step() -> dict[str, object]:
        torch.manual_seed(0)
        return runpy.run_path("train.py")

    with tempfile.TemporaryDirectory() as folder, _working_in(folder):
        Path("train.py").write_text(program)
        return f"{torchnan.try_remedies(step)}\n"


def render(page: str) -> str:
    """Returns the page with what its programs report now, and which remedies work."""

    def with_outputs(section: re.Match[str]) -> str:
        number, title, text, program, _, remedy, _ = section.groups()
        return (
            f"## {number}. {title}\n{text}```python\n{program}```\n\n```text\n{report_of(program)}```\n"
            f"\n{remedy}\n\n```text\n{remedies_of(program)}```\n"
        )

    return SECTION.sub(with_outputs, page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
