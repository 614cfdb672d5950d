"""The optimizer's step, through a loss scaler if there is one."""

from __future__ import annotations

import torch


class ScaledStep:
    """Steps an optimizer, and deals with what its scaler remembers of a step that is not taken.

    Args:
        optimizer: steps.
        scaler: a ``torch.amp.GradScaler``; ``None`` or a disabled one: there is none.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
        self._optimizer = optimizer
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None

    def take(self) -> None:
        """Steps."""
        if self.scaler is None:
            self._optimizer.step()
            return
        self.scaler.step(self._optimizer)
        self.scaler.update()

    def mark_to_skip(self) -> None:
        """The scaler will not step, and lower its scale; on every rank, so that the scales stay equal."""
        assert self.scaler is not None
        for found in self.scaler._per_optimizer_states[id(self._optimizer)]["found_inf_per_device"].values():
            found.fill_(1.0)

    def forget(self) -> None:
        """A scaler that has unscaled gradients waits for update(); these gradients are gone."""
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()
