"""The results of `make matrix`, and the table of them in README."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support import marked_tables

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results.json"
README = REPOSITORY / "README.md"


def results() -> dict[str, dict[str, str]]:
    """Returns the rows by pair, ``"3.12/2.14"``."""
    rows: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return rows


def record(pair: str, row: dict[str, str]) -> None:
    """Keeps the result of a pair, and writes the table anew."""
    RESULTS.write_text(json.dumps({**results(), pair: row}, indent=1, sort_keys=True) + "\n")
    marked_tables.write(README, "make matrix", table())


def is_good(row: dict[str, str]) -> bool:
    """Returns whether it was built, all tests passed and every origin is exact."""
    exact, _, programs = row.get("origins", "").partition(" of ")
    passed = "passed" in row["outcome"] and not re.search("failed|error", row["outcome"])
    return passed and exact == programs != "" and row["alarms"] == "0"


def table() -> str:
    """Returns Python by PyTorch; a pair that was never run has a dash."""
    rows = results()
    pythons = sorted({pair.split("/")[0] for pair in rows}, key=_by_number)
    releases = sorted({pair.split("/")[1] for pair in rows}, key=_by_number)
    lines = ["| |" + "".join(f" PyTorch {release} |" for release in releases), "|---" * (len(releases) + 1) + "|"]
    for python in pythons:
        cells = [_cell(rows.get(f"{python}/{release}")) for release in releases]
        lines.append(f"| Python {python} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, str] | None) -> str:
    if row is None:
        return "not run"
    if "torch" not in row:
        return row["outcome"]
    return f"{row['torch'].partition('+')[0]}: {row['outcome']}; origins {row['origins']}"


def _by_number(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
