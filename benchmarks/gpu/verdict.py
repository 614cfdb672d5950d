"""What was measured, and what it is held against."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Verdict:
    """One figure.

    Attributes:
        what: what was measured.
        value: the figure.
        limit: the largest that passes; None for a figure that is only noted.
        verdict: PASS, FAIL or NOTE.
    """

    what: str
    value: float
    limit: float | None = None
    verdict: str = "NOTE"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"  (at most {self.limit:g})"
        return f"{self.verdict}  {self.what}: {self.value:g}{limit}"


def at_most(what: str, value: float, limit: float, holds: bool = True) -> Verdict:
    """Returns the verdict of a figure; only a note where the device is none whose figures count."""
    if not holds:
        return Verdict(what, value, limit)
    return Verdict(what, value, limit, "PASS" if value <= limit else "FAIL")


def is_true(what: str, value: bool) -> Verdict:
    return Verdict(what, float(not value), 0, "PASS" if value else "FAIL")
