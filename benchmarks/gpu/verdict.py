"""Figures, and the limits they are compared with."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path


@dataclasses.dataclass
class Verdict:
    """One figure.

    Attributes:
        what: the name of the figure.
        value: the figure.
        limit: the largest value that passes; None for a figure that is only recorded.
        verdict: PASS, FAIL or NOTE.
        detail: what else was measured.
    """

    what: str
    value: float
    limit: float | None = None
    verdict: str = "NOTE"
    detail: str = ""

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"  (at most {self.limit:g})"
        detail = f"  [{self.detail}]" if self.detail else ""
        return f"{self.verdict}  {self.what}: {self.value:.4g}{limit}{detail}"


def at_most(what: str, value: float, limit: float, holds: bool = True, detail: str = "") -> Verdict:
    """Returns the verdict of a figure; only a note if the figures of the device do not count."""
    verdict = "NOTE" if not holds else "PASS" if value <= limit else "FAIL"
    return Verdict(what, value, limit, verdict, detail)


def is_true(what: str, value: bool) -> Verdict:
    return Verdict(what, float(not value), 0, "PASS" if value else "FAIL")


def write_whole(path: Path, text: str) -> None:
    """Writes a file that never holds half of the text, also if the process is killed meanwhile."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def write_verdicts(path: Path, verdicts: list[Verdict]) -> None:
    write_whole(path, json.dumps([dataclasses.asdict(verdict) for verdict in verdicts]))


def read_verdicts(path: Path) -> list[Verdict]:
    """Returns the verdicts of a file; none if it does not exist."""
    return [Verdict(**fields) for fields in json.loads(path.read_text())] if path.exists() else []
