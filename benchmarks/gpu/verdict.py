"""Figures, and the limits they are compared with."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Verdict:
    """One figure.

    Attributes:
        what: the name of the figure.
        value: the figure.
        limit: the largest value that passes; None for a figure that is only recorded.
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
    """Returns the verdict of a figure; only a note if the figures of the device do not count."""
    if not holds:
        return Verdict(what, value, limit)
    return Verdict(what, value, limit, "PASS" if value <= limit else "FAIL")


def is_true(what: str, value: bool) -> Verdict:
    return Verdict(what, float(not value), 0, "PASS" if value else "FAIL")
