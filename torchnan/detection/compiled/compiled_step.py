"""Checks and counts a compiled step of an optimizer like any other."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from torchnan._load import _C
from torchnan.detection import optimizer_hooks
from torchnan.detection.compiled.called_modules import Gradient
from torchnan.detection.containment import contained


def checks(gradient: Gradient) -> tuple[Callable[[Sequence[Any]], Optimizer | None], Callable[[Optimizer], None]]:
    """Returns the functions that run before and after the region of a step.

    The first checks what the optimizer is about to use, and returns the optimizer; ``None`` if it is not found. The
    second is given the optimizer, and checks what the step has left.

    Args:
        gradient: one of those that the region is given.
    """
    known: list[Callable[[], Optimizer | None]] = []

    def begin(args: Sequence[Any]) -> Optimizer | None:
        optimizer = known[0]() if known else None
        with contained("finding the optimizer of a compiled step"):
            if not known:  # the region is that of one optimizer: its parameters are a part of it
                optimizer = _optimizer_with(gradient, args[gradient.argument])
                known.append(weakref.ref(optimizer) if optimizer is not None else lambda: None)
        if optimizer is not None:
            optimizer_hooks.before_compiled_step(optimizer)
        return optimizer

    return begin, optimizer_hooks.after_compiled_step


def _optimizer_with(gradient: Gradient, value: torch.Tensor) -> Optimizer | None:
    """Returns the optimizer with a parameter that has this gradient, at the position that the region recorded."""
    optimizer: Optimizer
    for optimizer in _C.instances_of(Optimizer):
        groups = [group["params"] for group in getattr(optimizer, "param_groups", ())]  # it may not be initialized yet
        parameters = groups[gradient.group] if gradient.group < len(groups) else []
        if gradient.position < len(parameters) and parameters[gradient.position].grad is value:
            return optimizer
    return None
