"""docs/suites.md: what became of the tests of others under torchnan, at the last ``make suites``."""

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

HEAD = """# Test suites of others

The tests of packages that nobody here wrote, run twice as they are and once with `TORCHNAN=log`, nothing else changed.
`make suites` runs them and writes this page; it fails if a test has another outcome under torchnan, or a warning that
it did not have. Versions, files and what is left out are in [suites.toml](../tests/third_party_suites/suites.toml).

| package | version | tests | passed | vary by themselves | changed by torchnan | findings logged | time |
|---|---|---|---|---|---|---|---|
"""

TAIL = """
*Tests that fail* in the plain run fail under torchnan too: most of them expect another version of something. *Findings*
are NaN and Inf that did harm: tests of numerical packages make them on purpose. *Time* is processor time under torchnan
to that without, one thread, pytest and imports included.

## Left out

"""


def suites() -> list[dict[str, Any]]:
    return tomllib.loads((HERE / "suites.toml").read_text())["suite"]


def line(row: dict[str, Any]) -> str:
    changed = len(row["changed"]) + len(row["warned"])
    cells = [row["package"], row["version"], f"{row['tests']:,}", f"{row['passed']:,}", len(row["by itself"])]
    return "| " + " | ".join(map(str, [*cells, changed, row["findings"], f"{row['ratio']:.2f}"])) + " |"


def changes(row: dict[str, Any]) -> Iterator[str]:
    """What torchnan changed, for whoever is to repair it."""
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
    PAGE.write_text(HEAD + "".join(f"{line(row)}\n" for row in rows) + TAIL + ("".join(left_out) or "Nothing.\n"))
