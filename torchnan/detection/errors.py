"""The errors and warnings of detection."""

from __future__ import annotations

import contextlib
import re
import warnings

import torch

from torchnan.config.text import printable
from torchnan.detection.finding import Finding

_NONFINITE = re.compile(
    r"(?<![^\W_])(nans?|infs?|infinit\w*|non-?finite|isnan|isinf|isfinite|finite)(?![^\W_])", re.IGNORECASE
)


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


def may_be_of_nonfinite(error: BaseException) -> bool:
    """Whether a non-finite value may be why somebody raised this: a check of the program, or a refused matrix."""
    if isinstance(error, (NonFiniteError, OSError)):  # it has told that; it names a file
        return False
    with contextlib.suppress(Exception):  # a class of the program's, with a str() of its own
        is_refused = isinstance(error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
        return is_refused or _NONFINITE.search(str(error)) is not None
    return False


def warn(finding: Finding, text: str) -> None:
    """Warns at the user's source line."""
    file, line = (finding.file, finding.line) if finding.stack else ("<unknown>", 0)
    warnings.warn_explicit(text, NonFiniteWarning, printable(file or "<unknown>", 4096), line or 0)


def warn_of_detector(text: str) -> None:
    """Warns that torchnan could not do a part of its work."""
    warnings.warn(text, DetectorWarning, stacklevel=1)
