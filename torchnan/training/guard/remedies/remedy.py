"""The base classes of remedies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from torchnan.training.guard.remedies.call import Call
from torchnan.training.guard.remedies.change import CallChange, Change
from torchnan.training.guard.remedies.origin import Origin, at


class Remedy:
    """Something that makes some steps finite.

    Attributes:
        answers: the causes that it is for.
        because: why it is fit for them, and what it changes besides.
    """

    answers: ClassVar[str]
    because: ClassVar[str]

    def changes(self, origin: Origin) -> Iterator[Change]:
        """Yields the changes to try for an origin; none if it is not fit for it."""
        raise NotImplementedError


class CallRemedy(Remedy):
    """A remedy that replaces the calls of its operators at the origin's line.

    Attributes:
        operators: those that it changes, without ``_`` for those in place and ``_foreach_`` for those of lists.
    """

    operators: ClassVar[frozenset[str]]

    def changes(self, origin: Origin) -> Iterator[Change]:
        for operator in sorted(origin.operators):
            calls = [call for call in origin.calls if call.operator == operator]
            if origin.line is not None and self.fits(origin, calls[0]):
                text = f"{self.text(origin, calls[0])} at {self.lines(calls[0]) or at(origin.line)}"
                yield CallChange(text, origin.line, frozenset({operator}), self.replacement(origin))

    def fits(self, origin: Origin, call: Call) -> bool:
        """Returns whether it may help a call."""
        return plain(call.operator) in self.operators

    def text(self, origin: Origin, call: Call) -> str:
        """Returns what it does, without the line."""
        raise NotImplementedError

    def lines(self, call: Call) -> str:
        """Returns the lines that it changes, ``""`` if that is the origin's alone."""
        return ""

    def replacement(self, origin: Origin) -> Any:
        """Returns what runs instead of a call."""
        return self.replace

    def replace(self, call: Call) -> Any:
        """Runs another operation in place of a call and returns its result, or ``UNCHANGED``."""
        raise NotImplementedError


def plain(operator: str) -> str:
    """Returns the name of an operator without what says that it works in place or on lists."""
    return operator.removeprefix("_foreach_").rstrip("_")


def tiny(dtype: torch.dtype) -> float:
    """Returns a small number whose reciprocal the dtype holds, and whose reciprocal's square if it is not float16."""
    return 1e-4 if dtype is torch.float16 else 1e-12


def clamp(value: Any, low: float | None, high: float | None) -> Any:
    """Returns a tensor or number kept between limits; integers and masks stay as they are. NaN stays NaN."""
    if isinstance(value, torch.Tensor):
        return value.clamp(low, high) if value.is_floating_point() else value
    if not isinstance(value, float):
        return value
    return min(max(value, -math.inf if low is None else low), math.inf if high is None else high)


def away_from_zero(value: Any, least: float) -> Any:
    """Returns a tensor or number whose magnitude is at least this, with the sign that it has."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point():
            return value.clamp(min=1) if value.dtype is not torch.bool else value
        return torch.where(value.abs() < least, torch.full_like(value, least).copysign(value.detach()), value)
    return math.copysign(max(abs(value), least), value)
