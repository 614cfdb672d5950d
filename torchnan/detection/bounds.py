"""Bounds for custom operators: results that a bound proves finite are not scanned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from torchnan._load import _C
from torchnan.config.options import suggest
from torchnan.config.text import brief, printable


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound on the elements of a tensor argument, known without scanning it.

    Attributes:
        most: an upper limit of ``|x|``; ``inf`` if nothing is known.
        nonnegative: whether all ``x`` are at least zero.
        shape: of the tensor.
    """

    most: float
    nonnegative: bool
    shape: tuple[int, ...]


Rule = Callable[..., float | Sequence[float | None] | None]


def register_bound(op: str, rule: Rule) -> None:
    """Registers a rule for how large the results of a custom operator can be.

    Results that this rule bounds within their dtype's range count as finite and are not scanned. A rule is a theorem
    about the operator: a bound that is too small hides a NaN. ``detect(rescan_every=1)`` tests every rule.

    Args:
        op: namespace and name, ``"mylib::scale"``: all its overloads, and its in-place form.
        rule: called before the operator with one value per argument of its schema: a :class:`Bound` for a tensor, a
            common one for a list of tensors, numbers and lists of integers as they are, ``None`` for anything else.
            Returns the largest possible ``|x|`` of the result, or one for each result; ``None`` if unknown. May be
            called
            on any thread. If a rule raises, ``stats()["internal_errors"]`` counts it, and the result is scanned.

    Raises:
        ValueError: a name without namespace, of an operator that does not exist yet, or of one that already has a rule.

    Example:
        >>> torchnan.register_bound("mylib::scale", lambda x, factor: x.most * abs(factor))
    """
    if not callable(rule):
        raise TypeError(f"rule={brief(rule)} cannot be used: it takes a callable.")
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    if isinstance(op, str) and "::" in op and op.partition(".")[0] not in names:
        raise ValueError(
            f"no operator is called '{printable(op, 100)}': define it before its bound rule.{suggest(op, names)}"
        )
    _C.register_bound(op, rule, Bound)
