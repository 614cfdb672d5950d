"""Guards: points in user code at which values must be finite."""

from __future__ import annotations

from typing import TypeVar, cast

import torch

from torchnan._load import _C  # noqa: F401 - registers torch.ops.torchnan
from torchnan.config.text import brief
from torchnan.detection.nested import map_tensors, tensors_in

_Values = TypeVar("_Values")


def guard(x: _Values, name: str = "") -> _Values:
    """Marks a point: the value is checked at once, and the gradient when the backward pass arrives here.

    Works with and without a detection session: without one, a non-finite value raises. ``TORCHNAN=0`` turns it off.

    Args:
        x: any tensor, of any shape, dtype and device; or dicts, lists, tuples and dataclasses with tensors in them,
            such as a batch or the output of a model.
        name: the name of the point in the report; the path of the tensor in ``x`` is added to it.

    Returns:
        a view of ``x``; under ``torch.compile`` and functorch transforms a copy. A container of tensors is of the
        same class as ``x``, with views of them.

    Raises:
        NonFiniteError: the value, or later the gradient, is not finite.
        TypeError: there is no tensor in ``x``, or ``name`` is not a string.

    Example::

        logits = torchnan.guard(logits, "logits")
    """
    if not isinstance(name, str):
        raise TypeError(f"guard(name={brief(name)}): name is a string.")
    if isinstance(x, torch.Tensor):
        return cast(_Values, torch.ops.torchnan.guard(x, name))
    if not tensors_in(x, ""):
        raise TypeError(
            f"guard({brief(x)}): there is no tensor in it. guard() takes a tensor, or dicts, lists, tuples and "
            "dataclasses with tensors in them."
        )
    return cast(_Values, map_tensors(x, lambda path, tensor: torch.ops.torchnan.guard(tensor, f"{name}{path}")))
