"""Proves steps of Adam and AdamW finite as a whole, instead of one operation at a time.

Many models spend most of their calls in the optimizer. The core proves from the bounds of the parameters, gradients and
moments that nothing can overflow; then the calls of the step are not intercepted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import Optimizer

from torchnan._load import _C

_KINDS = (torch.optim.Adam, torch.optim.AdamW)  # but not their subclasses


def try_start(optimizer: Optimizer) -> None:
    """Starts a proved step if a proof exists, and no other code can run between here and :func:`finish`."""
    if type(optimizer) in _KINDS and _is_alone(optimizer) and not _has_scaler(optimizer):
        _C.start_proved_step(optimizer.param_groups, optimizer.state)


def finish() -> None:
    """Ends the proved step, if there is one, after all its operations have run."""
    _C.finish_proved_step(is_completed=True)


def _is_alone(optimizer: Optimizer) -> bool:
    """Whether the step is PyTorch's own, without hooks of others that may compute something."""
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    shared = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    is_original = type(optimizer).step.__module__ == "torch.optim.adam"
    return is_original and not any(hooks) and all(len(hooks) == 1 for hooks in shared)


def _has_scaler(optimizer: Optimizer) -> bool:
    """Whether a fused step itself undoes a loss scale, or skips if the scaler has found an Inf."""
    return getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None


def ending(leave: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``record_function.__exit__``, in which PyTorch runs every step: a step that raises ends there."""

    @functools.wraps(leave)
    def wrapper(self: Any, *exception: Any) -> Any:
        _C.finish_proved_step(is_completed=False)
        return leave(self, *exception)

    return wrapper
