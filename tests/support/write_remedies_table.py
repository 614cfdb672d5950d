"""Writes the table in docs/remedies.md from the registry of remedies.

Run it by ``python -m tests.support.write_remedies_table``.
"""

from __future__ import annotations

import re

from tests.support import marked_tables
from tests.support.processes import REPOSITORY
from torchnan.training.guard.remedies.registry import REMEDIES

PAGE = REPOSITORY / "docs" / "remedies.md"
COMMAND = "python -m tests.support.write_remedies_table"


def table() -> str:
    """Returns the table as it should be."""
    rows = (f"| {_what(remedy)} | {remedy.answers} | {remedy.because} |\n" for remedy in REMEDIES)
    return "| remedy | for | why it is fit |\n|---|---|---|\n" + "".join(rows)


def _what(remedy: object) -> str:
    """Returns what a remedy does, from the first line of its docstring."""
    return re.sub(r"\.$", "", (type(remedy).__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    marked_tables.write(PAGE, COMMAND, table())
