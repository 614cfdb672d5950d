"""Writes docs/guarantees.md: each guarantee with its tests and their last figures.

Run it by ``python -m tests.support.write_guarantees_page``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "guarantees" / "data"
PAGE = REPOSITORY / "docs" / "guarantees.md"

HEAD = """# Guarantees

Each guarantee is listed with its limits, its tests, and the figures of the last `make soak` on a machine with 2 cores
(Debian 12, PyTorch 2.13, CPU). `make test` runs a shorter form of every test. This page is written by
`python -m tests.support.write_guarantees_page`.
"""


def guarantees() -> list[dict[str, Any]]:
    return tomllib.loads((DATA / "guarantees.toml").read_text())["guarantee"]


def text() -> str:
    figures = json.loads((DATA / "figures.json").read_text())
    return HEAD + "".join(_section(guarantee, figures) for guarantee in guarantees()) + _not_guaranteed()


def write() -> None:
    PAGE.write_text(text())


def _section(guarantee: dict[str, Any], figures: dict[str, list[Any]]) -> str:
    lines = [f"\n## {guarantee['number']}. {guarantee['name']}\n\n{guarantee['text'].strip()}\n"]
    if "limits" in guarantee:
        lines.append(f"\nLimits: {guarantee['limits'].strip()}\n")
    if guarantee["tests"]:
        lines.append("\nTests: " + ", ".join(f"[{Path(test).name}](../{test})" for test in guarantee["tests"]) + ".\n")
    rows = [(test, figure) for test, (number, figure) in sorted(figures.items()) if number == guarantee["number"]]
    if rows:
        lines.append("\n| test | last figures |\n|---|---|\n")
        lines.extend(f"| `{_name(test)}` | {figure} |\n" for test, figure in rows)
    return "".join(lines)


def _name(test: str) -> str:
    return test.split("::", 1)[1]


def _not_guaranteed() -> str:
    exclusions = tomllib.loads((DATA / "guarantees.toml").read_text())["not_guaranteed"]
    return "\n## Not guaranteed\n\n" + "".join(f"* {one}\n" for one in exclusions)


if __name__ == "__main__":
    write()
