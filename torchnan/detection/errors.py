"""The errors and warnings of detection."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable

import torch

from torchnan.config.text import printable
from torchnan.detection import signal_handlers
from torchnan.detection.finding import Finding
from torchnan.detection.replacement import replace

_NONFINITE = re.compile(
    r"(?<![^\W_])(nans?|infs?|infinit\w*|non-?finite|isnan|isinf|isfinite|finite)(?![^\W_])", re.IGNORECASE
)


# What PyTorch's kernels say of a number that is not within a range, as NaN never is, and the integers to which NaN is
# cast.
_REFUSED = re.compile(
    "all elements of input should be between 0 and 1|Expected p_in >= 0|expected rate to be non-negative|"
    r"expects all elements of std >= 0|ChooseQuantizationParams|-(9223372036854775808|2147483648)(?!\d)"
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
    """Warns about a non-finite value that did harm (``action="warn"``), or that was never used."""


class DetectorWarning(RuntimeWarning):
    """Warns that a part of torchnan itself failed. User code goes on."""


for _public in (NonFiniteError, NonFiniteWarning):
    _public.__module__ = "torchnan"  # the public name, for tracebacks and warning filters


def may_be_of_nonfinite(error: BaseException) -> bool:
    """Whether an error may be about a non-finite value: a check of the program, or a refused matrix or number."""
    if isinstance(error, (NonFiniteError, OSError)):  # the former is a report already; the latter names a file
        return False
    with signal_handlers.suppressed():  # a class of the program, with its own str()
        is_refused = isinstance(error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
        return is_refused or any(of.search(str(error)) is not None for of in (_NONFINITE, _REFUSED))
    return False


def warn(finding: Finding, text: str) -> None:
    """Warns at the user's source line."""
    file, line = (finding.file, finding.line) if finding.stack else ("<unknown>", 0)
    warnings.warn_explicit(text, NonFiniteWarning, printable(file or "<unknown>", 4096), line or 0)


def leave_out_source_lines() -> None:
    """Has Python print a report that is a warning without the source line after it, which looks like a part of it."""
    replace(warnings, "formatwarning", _without_source_lines)


def _without_source_lines(format_warning: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(format_warning)
    def formatted(message: Warning, category: type[Warning], file: str, line: int, source: str | None = None) -> str:
        is_report = issubclass(category, NonFiniteWarning)
        return format_warning(message, category, file, line, "" if is_report else source)

    return formatted


def warn_of_detector(text: str) -> None:
    """Warns that a part of torchnan failed."""
    warnings.warn(text, DetectorWarning, stacklevel=1)
