"""Writes docs/guarantees.md: each guarantee with its tests and their last figures.

Run it by ``python -m tests.support.write_guarantees_page [build/fuzz.json]``. With the totals of a search of
tests/fuzz, it also takes the claims of the rules by setting from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fuzz.settings import ClaimsBySetting

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
    if "claims" in guarantee:
        lines.append(_claims(json.loads((DATA / guarantee["claims"]).read_text())))
    return "".join(lines)


def take_claims(totals: Path) -> None:
    """Keeps what a search of tests/fuzz has compared, with the commit."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()
    kept = {"commit": commit, **json.loads(totals.read_text())}
    (DATA / "claims.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def _claims(search: dict[str, Any]) -> str:
    """Returns what a search has run, and a table of the claims that it compared."""
    of_generator = (f"{name} {first} to {search['seeds'][name] - 1}" for name, first in search["first"].items())
    seeds = ", ".join(of_generator)
    ran = f"The last search was at commit {search['commit']}, with these seeds of each generator: {seeds}."
    found = f"It found {search['found']} disagreements."
    table = ClaimsBySetting(search["claims"]).table()
    return f"\n{ran} {found} The claims that it compared with a result, by rule and setting:\n\n{table}"


def _name(test: str) -> str:
    return test.split("::", 1)[1]


def _not_guaranteed() -> str:
    exclusions = tomllib.loads((DATA / "guarantees.toml").read_text())["not_guaranteed"]
    return "\n## Not guaranteed\n\n" + "".join(f"* {one}\n" for one in exclusions)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take_claims(Path(sys.argv[1]))
    write()
