"""docs/guarantees.md: from promise to test to the last figure. ``python tests/guarantees/table.py`` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PAGE = REPOSITORY / "docs" / "guarantees.md"

HEAD = """# What torchnan promises

What each promise is, which tests hold to it, and what was measured last, by `make soak` on a machine with 2 cores
(Debian 12, PyTorch 2.13, CPU). The short form of every test runs in `make test`. Beside a test stands what was removed
when it was seen to fail; where nothing stands, nobody has tried. This page is written by
`python tests/guarantees/table.py`.
"""


def promises() -> list[dict[str, Any]]:
    return tomllib.loads((HERE / "promises.toml").read_text())["promise"]


def text() -> str:
    figures = json.loads((HERE / "figures.json").read_text())
    return HEAD + "".join(_section(promise, figures) for promise in promises()) + _not_promised()


def write() -> None:
    PAGE.write_text(text())


def _section(promise: dict[str, Any], figures: dict[str, list[Any]]) -> str:
    lines = [f"\n## {promise['number']}. {promise['name']}\n\n{promise['text'].strip()}\n"]
    if "limits" in promise:
        lines.append(f"\nLimits: {promise['limits'].strip()}\n")
    if promise["tests"]:
        lines.append("\nTests: " + ", ".join(f"[{Path(test).name}](../{test})" for test in promise["tests"]) + ".\n")
    told = [(test, said) for test, (bar, said) in sorted(figures.items()) if bar == promise["number"]]
    if told:
        lines.append("\n| test | last figure |\n|---|---|\n")
        lines.extend(f"| `{_name(test)}` | {said} |\n" for test, said in told)
    return "".join(lines)


def _name(test: str) -> str:
    return test.split("::", 1)[1]


def _not_promised() -> str:
    said = tomllib.loads((HERE / "promises.toml").read_text())["not_promised"]
    return "\n## Not promised\n\n" + "".join(f"* {one}\n" for one in said)


if __name__ == "__main__":
    write()
