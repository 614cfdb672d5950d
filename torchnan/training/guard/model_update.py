"""Applies a good step to the model: clips, steps the optimizer through its scaler, then the scheduler."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchnan.config.policy import Policy
from torchnan.training.guard.learning_rate import LearningRateCut
from torchnan.training.guard.snapshots import Stateful
from torchnan.training.guard.step.norm_limit import NormLimit

_ADDED = 1e-6  # by clip_grad_norm_ to the norm
_NEARLY = 0.9  # PyTorch's norm, in the dtype of the gradients, is off by less than the rest
_LARGEST = torch.finfo(torch.float32).max


class ClipThreshold:
    """The norm that gradients are clipped to: the policy's ``max_norm``, until an instability lowers it.

    Args:
        norm_limit: has the mean norm of the last good steps.
        max_norm: the policy's ``max_norm``. ``None``: gradients are not clipped.
        factor: multiplies the threshold when it is lowered.

    Attributes:
        max_norm: the current threshold.
    """

    def __init__(self, norm_limit: NormLimit, max_norm: float | None, factor: float) -> None:
        self._norm_limit = norm_limit
        self.max_norm = max_norm
        self._factor = factor

    def lower(self, norm: float) -> float | None:
        """Lowers the threshold from this step on; without one, starts from the mean norm of the last good steps.

        Args:
            norm: norm of this step, used where there is no mean yet.

        Returns:
            The new threshold; ``None`` if there is no norm to start from.
        """
        usual = self._norm_limit.mean or (norm if math.isfinite(norm) and norm > 0 else None)
        current = usual if self.max_norm is None else self.max_norm
        if current is not None:
            self.max_norm = self._factor * current
        return self.max_norm

    def state_dict(self) -> dict[str, Any]:
        """Returns the current threshold."""
        return {"most": self.max_norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self.max_norm = state["most"]


class ScaledStep:
    """Steps an optimizer, through a loss scaler if there is one, or makes the scaler skip.

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


class ModelUpdate:
    """The optimizer, its scaler and scheduler, and what recovery changes about how they step.

    Args:
        model: has the parameters in the order in which they are clipped.
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
        scheduler: the scheduler, or ``None``.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        scheduler: Any,
        policy: Policy,
    ) -> None:
        self._model = model
        self._is_exact = policy.exact_clip
        self.optimizer = optimizer
        self.scaled_step = ScaledStep(optimizer, scaler)
        self.norm_limit = NormLimit(policy.norm_limit, policy.norm_factor, policy.norm_window)
        self.clip = ClipThreshold(self.norm_limit, policy.max_norm, policy.clip_factor)
        self.lr_cut = LearningRateCut(optimizer, policy.lr_factor, policy.lr_ramp)
        self.scheduler = scheduler

    @property
    def stateful_parts(self) -> dict[str, Stateful]:
        """Optimizer, scaler and scheduler by name, as far as they exist."""
        parts = {"optimizer": self.optimizer, "scaler": self.scaled_step.scaler, "scheduler": self.scheduler}
        return {name: part for name, part in parts.items() if part is not None}

    def clip_gradients(self, norm: float) -> None:
        """Clips the gradients, whose norm is given. Collective if they are sharded."""
        most = self.clip.max_norm
        if most is None or norm + _ADDED <= (_NEARLY * most if self._is_exact else most):
            return
        parameters = self._in_order_of_model()
        if self._is_exact:
            torch.nn.utils.clip_grad_norm_(parameters, most)
        else:
            total = torch.tensor(norm, dtype=torch.float64 if norm > _LARGEST else torch.float32)
            torch.nn.utils.clip_grads_with_norm_(parameters, most, total)

    def _in_order_of_model(self) -> list[torch.Tensor]:
        """Returns the optimizer's parameters in the order of ``model.parameters()``, in which programs clip them: it is
        that of the sums in their norm."""
        stepped = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        places = {id(parameter): place for place, parameter in enumerate(self._model.parameters())}
        return sorted(stepped, key=lambda parameter: places.get(id(parameter), len(places)))

    def apply(self, norm: float) -> None:
        """Clips the gradients, whose norm is given, and steps the optimizer and the scheduler."""
        if self.clip.max_norm is not None:
            self.clip_gradients(norm)
        try:
            self.scaled_step.step()
        except BaseException:  # then no hook runs after the step
            self.lr_cut.end_step()
            raise
        if self.scheduler is not None:
            self.scheduler.step()

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
