"""Checks and counts a compiled step of an optimizer like any other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from torchnan._load import _C
from torchnan.detection import optimizer_hooks
from torchnan.detection.compiled.called_modules import Gradient
from torchnan.detection.containment import contained


def checked(call: Callable[..., Any], gradient: Gradient) -> Callable[..., Any]:
    """Returns the function that runs the region of a step between the checks of its optimizer.

    Args:
        call: runs the region.
        gradient: one of those that it is given.
    """
    known: list[Callable[[], Optimizer | None]] = []

    def step(*args: Any) -> Any:
        if _C.current_session() is None or _C.is_replaying():
            return call(*args)
        optimizer = known[0]() if known else None
        with contained("finding the optimizer of a compiled step"):
            if not known:  # the region is that of one optimizer: its parameters are a part of it
                optimizer = _optimizer_with(gradient, args[gradient.argument])
                known.append(weakref.ref(optimizer) if optimizer is not None else lambda: None)
        if optimizer is None:
            return call(*args)
        optimizer_hooks.before_compiled_step(optimizer)
        results = call(*args)
        optimizer_hooks.after_compiled_step(optimizer)
        return results

    return step


def _optimizer_with(gradient: Gradient, value: torch.Tensor) -> Optimizer | None:
    """Returns the optimizer with a parameter that has this gradient, at the position that the region recorded."""
    optimizer: Optimizer
    for optimizer in _C.instances_of(Optimizer):
        groups = [group["params"] for group in getattr(optimizer, "param_groups", ())]  # it may not be initialized yet
        parameters = groups[gradient.group] if gradient.group < len(groups) else []
        if gradient.position < len(parameters) and parameters[gradient.position].grad is value:
            return optimizer
    return None
