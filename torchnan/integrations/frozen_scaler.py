"""Freezes a loss scaler while a framework steps it after a bad step, which cannot be prevented."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState


class FrozenScaler:
    """Keeps a loss scaler unchanged over one ``scaler.step(optimizer)`` and ``scaler.update()``.

    Args:
        scaler: a ``torch.amp.GradScaler``; ``None`` and a disabled one do nothing.
    """

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._state: dict[str, Any] | None = None

    def freeze(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes ``step()`` skip, as if it had found an Inf. Otherwise it would raise, because the gradients are
        gone."""
        if self._scaler is None:
            return
        self._state = self._scaler.state_dict()
        scale = self._scaler._scale
        assert scale is not None  # set by the backward pass
        state = self._scaler._per_optimizer_states[id(optimizer)]
        state["stage"] = OptState.UNSCALED
        state["found_inf_per_device"] = {scale.device: torch.ones((), device=scale.device)}

    def restore(self) -> None:
        """Restores the scale and the count of good steps, after ``update()``."""
        if self._scaler is not None and self._state is not None:
            self._scaler.load_state_dict(self._state)
            self._state = None
