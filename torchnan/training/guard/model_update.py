"""Applies a good step to the model: clips, steps the optimizer through its scaler, then the scheduler."""

from __future__ import annotations

from typing import Any

import torch

from torchnan.config.policy import Policy
from torchnan.training.guard.clip import ClipThreshold
from torchnan.training.guard.learning_rate import LearningRateCut
from torchnan.training.guard.snapshots import Stateful
from torchnan.training.guard.step.norm_limit import NormLimit
from torchnan.training.guard.step.scaled_step import ScaledStep


class ModelUpdate:
    """The optimizer, its scaler and scheduler, and what recovery changes about how they step.

    Args:
        optimizer: the optimizer, without wrappers.
        scaler: a ``torch.amp.GradScaler``, or ``None``.
        scheduler: stepped after each applied step, or ``None``.
        policy: limits, factors and ramps.

    Attributes:
        optimizer: the optimizer.
        scaled_step: steps it through the scaler.
        norm_limit: limits on the gradient norm.
        clip: the norm that gradients are clipped to.
        lr_cut: the temporary reduction of the learning rate.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, scheduler: Any, policy: Policy
    ) -> None:
        self.optimizer = optimizer
        self.scaled_step = ScaledStep(optimizer, scaler)
        self.norm_limit = NormLimit(policy.norm_limit, policy.norm_factor, policy.norm_window)
        self.clip = ClipThreshold(self.norm_limit, policy.max_norm, policy.clip_factor)
        self.lr_cut = LearningRateCut(optimizer, policy.lr_factor, policy.lr_ramp)
        self._scheduler = scheduler

    @property
    def stateful_parts(self) -> dict[str, Stateful]:
        """Optimizer, scaler and scheduler by name, as far as they exist."""
        parts = {"optimizer": self.optimizer, "scaler": self.scaled_step.scaler, "scheduler": self._scheduler}
        return {name: part for name, part in parts.items() if part is not None}

    def clip_gradients(self, norm: float) -> None:
        """Clips the gradients, whose norm is given."""
        if self.clip.max_norm is not None and norm > self.clip.max_norm:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grads_with_norm_(parameters, self.clip.max_norm, torch.tensor(norm))

    def apply(self, norm: float) -> None:
        """Clips the gradients, whose norm is given, and steps the optimizer and the scheduler."""
        if self.clip.max_norm is not None:
            self.clip_gradients(norm)
        self.scaled_step.step()
        if self._scheduler is not None:
            self._scheduler.step()

    def discard_gradients(self) -> None:
        """Drops the gradients, and the scaler's record of them."""
        self.optimizer.zero_grad(set_to_none=True)
        self.scaled_step.reset()

    def record_good_step(self, norm: float) -> bool:
        """Records the norm of a good step. Returns whether the ramp of the learning rate has ended with it."""
        self.norm_limit.record(norm)
        return self.lr_cut.record_good_step()

    def state_dict(self) -> dict[str, Any]:
        """Returns recent norms, the learning rate's ramp and the clipping norm."""
        return {
            "tripwire": self.norm_limit.state_dict(),
            "learning_rate": self.lr_cut.state_dict(),
            "clip": self.clip.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self.norm_limit.load_state_dict(state["tripwire"])
        self.lr_cut.load_state_dict(state["learning_rate"])
        self.clip.load_state_dict(state["clip"])
