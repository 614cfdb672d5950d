"""Guards: points in user code at which values must be finite."""

from __future__ import annotations

import torch

from torchnan._load import _C  # noqa: F401 - registers torch.ops.torchnan


def guard(x: torch.Tensor, name: str = "") -> torch.Tensor:
    """Marks a place: the value is checked here and now, the gradient when it passes here in the backward pass.

    Works with and without a detection: without one, a non-finite value raises. ``TORCHNAN=0`` turns it off.

    Args:
        x: any tensor, of any shape, dtype and device.
        name: what to call the place in the report.

    Returns:
        a view of ``x``; under ``torch.compile`` and functorch transforms a copy.

    Raises:
        NonFiniteError: the value, or later the gradient, is not finite.

    Example::

        logits = torchnan.guard(logits, "logits")
    """
    out: torch.Tensor = torch.ops.torchnan.guard(x, name)
    return out
