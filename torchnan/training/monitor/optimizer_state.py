"""Reads learning rates and the loss scale, without waiting for a GPU."""

from __future__ import annotations

import torch

from torchnan.training.monitor.options import as_scalar
from torchnan.training.monitor.pending_row import Scalar


def learning_rates(optimizer: torch.optim.Optimizer | None) -> list[Scalar]:
    """Returns the learning rates of the parameter groups."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [number for group in groups if (number := as_scalar("lr", group.get("lr"))) is not None]


def current_loss_scale(scaler: torch.amp.GradScaler | None) -> Scalar | None:
    """Returns a copy of the loss scale on its device; 1 for a disabled scaler, ``None`` without one."""
    if scaler is not None and not scaler.is_enabled():
        return 1.0
    scale: torch.Tensor | None = None if scaler is None else scaler._scale
    return None if scale is None else scale.detach().clone()
