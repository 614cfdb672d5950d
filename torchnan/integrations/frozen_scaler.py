"""Frameworks step and update their loss scaler after a bad step all the same: it must find nothing to do."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState


class FrozenScaler:
    """Keeps a loss scaler as it is over one ``scaler.step(optimizer)`` and ``scaler.update()``.

    Args:
        scaler: a ``torch.amp.GradScaler``; ``None`` or a disabled one makes this do nothing.
    """

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._kept: dict[str, Any] | None = None

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients are gone. ``step()`` will not step, as it would not if it had found an Inf in them; without
        this it would raise, having found no gradient at all."""
        if self._scaler is None:
            return
        self._kept = self._scaler.state_dict()
        scale = self._scaler._scale
        assert scale is not None  # a backward pass has been through it
        state = self._scaler._per_optimizer_states[id(optimizer)]
        state["stage"] = OptState.UNSCALED
        state["found_inf_per_device"] = {scale.device: torch.ones((), device=scale.device)}

    def release(self) -> None:
        """After ``update()``: the scale and the count of good steps are what they were."""
        if self._scaler is not None and self._kept is not None:
            self._scaler.load_state_dict(self._kept)
            self._kept = None
