"""Writes docs/suites.md: the outcomes of other packages' tests under torchnan, at the last ``make suites``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "suites.md"

HEAD = """# Test suites of other packages

The test suites of these packages were run unmodified, twice without torchnan and once with `TORCHNAN=log`. This page is
written by `make suites`, which fails if a test has another outcome under torchnan, or an additional warning. Versions,
test files and exclusions are in [suites.toml](../tests/third_party_suites/suites.toml).

| package | version | tests | passed | flaky without torchnan | changed by torchnan | findings | time |
|---|---|---|---|---|---|---|---|
"""

TAIL = """
Tests that fail without torchnan fail under it too; most of them expect another version of a dependency. *Findings* are
non-finite values that did harm, which tests of numerical packages make intentionally. *Time* is processor time under
torchnan relative to that without, on one thread, pytest and imports included.

## Excluded

"""


def suites() -> list[dict[str, Any]]:
    return tomllib.loads((HERE / "suites.toml").read_text())["suite"]


def line(row: dict[str, Any]) -> str:
    changed = len(row["changed"]) + len(row["warned"])
    cells = [row["package"], row["version"], f"{row['tests']:,}", f"{row['passed']:,}", len(row["by itself"])]
    return "| " + " | ".join(map(str, [*cells, changed, row["findings"], f"{row['ratio']:.2f}"])) + " |"


def changes(row: dict[str, Any]) -> Iterator[str]:
    """Describes what torchnan changed, and what varies without it."""
    for test, change in row["changed"].items():
        yield f"  CHANGED {test}: {change['outcomes'][0]} -> {change['outcomes'][1]}\n{change['told']}"
    for test, category in row["warned"]:
        yield f"  WARNED  {test}: {category}"
    for test in row["by itself"]:
        yield f"  varies  {test}"


def write(rows: list[dict[str, Any]]) -> None:
    left_out = [
        f"* `{suite['package']}`, `{test}`: {reason}\n"
        for suite in suites()
        for test, reason in suite.get("deselect", {}).items()
    ]
    PAGE.write_text(HEAD + "".join(f"{line(row)}\n" for row in rows) + TAIL + ("".join(left_out) or "None.\n"))
