"""Bounds for custom operators: results that a bound proves finite are not read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torchnan._load import _C
from torchnan.config.text import brief


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound on the elements of a tensor argument, known without scanning it.

    Attributes:
        most: no ``|x|`` is above it; ``inf`` if nothing is known.
        nonnegative: no ``x`` is below zero.
        shape: of the tensor.
    """

    most: float
    nonnegative: bool
    shape: tuple[int, ...]


Rule = Callable[..., float | Sequence[float | None] | None]


def register_bound(op: str, rule: Rule) -> None:
    """Tells torchnan how large the results of a custom operator can be.

    Results within their dtype's range by this rule are taken to be finite and are not read. A rule is a theorem about
    the operator: one that is too small hides a NaN. ``detect(rescan_every=1)`` holds every rule to its word.

    Args:
        op: namespace and name, ``"mylib::scale"``: all its overloads, and its in-place form.
        rule: called before the operator with one value per argument of its schema: a :class:`Bound` for a tensor, one
            of all for a list of tensors, numbers and lists of integers as they are, ``None`` for anything else. Returns
            the largest ``|x|`` that the result can have, or one for each result; ``None`` where nothing is known. May
            be called on any thread. A rule that raises is counted in ``stats()["internal_errors"]``, and the result is
            read.

    Raises:
        ValueError: a name without namespace, or of an operator that has a rule.

    Example:
        >>> torchnan.register_bound("mylib::scale", lambda x, factor: x.most * abs(factor))
    """
    if not callable(rule):
        raise TypeError(f"rule={brief(rule)} cannot be used: it takes a callable.")
    _C.register_bound(op, rule, Bound)
