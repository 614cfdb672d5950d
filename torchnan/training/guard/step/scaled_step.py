"""Steps an optimizer, through a loss scaler if there is one."""

from __future__ import annotations

import torch


class ScaledStep:
    """Steps an optimizer, or makes its scaler skip.

    Args:
        optimizer: the optimizer to step.
        scaler: a ``torch.amp.GradScaler``; ``None`` and a disabled one mean no scaler.

    Attributes:
        scaler: the enabled scaler, or ``None``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
        self._optimizer = optimizer
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None

    def step(self) -> None:
        """Steps the optimizer and updates the scaler."""
        if self.scaler is None:
            self._optimizer.step()
            return
        self.scaler.step(self._optimizer)
        self.scaler.update()

    def mark_to_skip(self) -> None:
        """Makes the scaler skip this step and lower its scale; called on every rank, so that the scales stay equal."""
        assert self.scaler is not None
        for found in self.scaler._per_optimizer_states[id(self._optimizer)]["found_inf_per_device"].values():
            found.fill_(1.0)
