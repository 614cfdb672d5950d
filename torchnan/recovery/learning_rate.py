"""After a rollback the learning rate is lower for a while."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

_cuts: weakref.WeakKeyDictionary[torch.optim.Optimizer, LearningRateCut] = weakref.WeakKeyDictionary()


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
        self._optimizer = optimizer
        self._hooks: list[RemovableHandle] = []  # only while there is something to multiply
        if optimizer in _cuts:
            _cuts[optimizer].close()  # of an earlier guard
        _cuts[optimizer] = self

    @property
    def factor(self) -> float:
        """Of the next step."""
        if self._from == 1.0 or self._good >= self._ramp:
            return 1.0
        return self._from + (1.0 - self._from) * self._good / self._ramp

    def cut(self) -> float:
        """From the next step on; returns the factor."""
        self._from, self._good = self.factor * self._factor, 0
        self._whole = []  # a rollback inside of step(closure) has put its own rates in place
        self._hook()
        return self._from

    def record_good_step(self) -> bool:
        """One more; True if this one has ended the ramp."""
        if self._from == 1.0:
            return False
        self._good += 1
        if self._good < self._ramp:
            return False
        self._from = 1.0
        self.close()
        return True

    def close(self) -> None:
        """The optimizer is as it was before."""
        while self._hooks:
            self._hooks.pop().remove()

    def _hook(self) -> None:
        if not self._hooks:
            self._hooks.append(self._optimizer.register_step_pre_hook(self._before))
            self._hooks.append(self._optimizer.register_step_post_hook(self._after))

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
        if self.factor != 1.0:
            self._hook()
