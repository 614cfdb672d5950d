"""After a rollback the learning rate is lower for a while."""

from __future__ import annotations

from typing import Any

import torch


class LearningRateCut:
    """Multiplies the learning rates while the optimizer steps, and only then: schedulers never see it.

    Args:
        optimizer: whose ``param_groups`` have an ``"lr"``, as numbers or tensors.
        factor: after a cut; a second cut multiplies once more.
        ramp: good steps until the rate is whole again, linearly.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: float, ramp: int) -> None:
        self._factor = factor
        self._ramp = ramp
        self._from = 1.0
        self._good = 0
        self._whole: list[Any] = []
        stepping = _bare(optimizer)
        stepping.register_step_pre_hook(self._before)
        stepping.register_step_post_hook(self._after)

    @property
    def factor(self) -> float:
        """Of the next step."""
        if self._from == 1.0 or self._good >= self._ramp:
            return 1.0
        return self._from + (1.0 - self._from) * self._good / self._ramp

    def cut(self) -> float:
        """From the next step on; returns the factor."""
        self._from, self._good = self.factor * self._factor, 0
        return self._from

    def note_good_step(self) -> bool:
        """One more; True if this one has ended the ramp."""
        if self._from == 1.0:
            return False
        self._good += 1
        if self._good < self._ramp:
            return False
        self._from = 1.0
        return True

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        factor = self.factor
        self._whole = [group["lr"] for group in optimizer.param_groups] if factor != 1.0 else []
        for group in optimizer.param_groups if self._whole else ():
            group["lr"] = group["lr"] * factor

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group, whole in zip(optimizer.param_groups, self._whole, strict=False):
            group["lr"] = whole
        self._whole = []

    def state_dict(self) -> dict[str, Any]:
        """Where in its ramp it is."""
        return {"from": self._from, "good": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self._from, self._good = state["from"], state["good"]


def _bare(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that steps, inside the wrappers of Accelerate and Lightning."""
    inner = getattr(optimizer, "optimizer", None)
    return _bare(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer
