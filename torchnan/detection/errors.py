"""The errors and warnings of detection."""

from __future__ import annotations

import warnings

from torchnan.config.text import printable
from torchnan.detection.finding import Finding


class NonFiniteError(RuntimeError):
    """Raised where a non-finite value does harm. The message is the report; ``finding`` has its fields."""

    finding: Finding

    def __init__(self, finding: Finding, text: str | None = None) -> None:
        super().__init__(text if text is not None else str(finding))
        self.finding = finding

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[Finding, str]]:
        return type(self), (self.finding, str(self))


class NonFiniteWarning(UserWarning):
    """Warns of a non-finite value that did harm (``action="warn"``), or that nothing ever used."""


class DetectorWarning(RuntimeWarning):
    """Warns that a part of torchnan itself failed. User code goes on."""


for _public in (NonFiniteError, NonFiniteWarning):
    _public.__module__ = "torchnan"  # as users know it, in tracebacks and in warning filters


def warn(finding: Finding, text: str) -> None:
    """Warns at the user's source line."""
    file, line = (finding.file, finding.line) if finding.stack else ("<unknown>", 0)
    warnings.warn_explicit(text, NonFiniteWarning, printable(file or "<unknown>", 4096), line or 0)


def warn_of_detector(text: str) -> None:
    """Warns that torchnan could not do a part of its work."""
    warnings.warn(text, DetectorWarning, stacklevel=1)
