"""Lowers the learning rate temporarily, as after a rollback."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchnan.detection.pause import detection_paused

_cuts: weakref.WeakKeyDictionary[torch.optim.Optimizer, LearningRateCut] = weakref.WeakKeyDictionary()


class LearningRateCut:
    """Multiplies the learning rates only while the optimizer steps, so that schedulers do not see it.

    Args:
        optimizer: its ``param_groups`` have an ``"lr"``, a number or a tensor.
        factor: factor of one cut; a second cut multiplies again.
        ramp: number of good steps until the rate is back to normal, linearly.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: float, ramp: int) -> None:
        self._factor = factor
        self._ramp = ramp
        self._from = 1.0
        self._good = 0
        self._uncut: list[tuple[dict[str, Any], Any, Any]] = []  # groups with the rates they have and had
        self._optimizer = weakref.ref(optimizer)  # _cuts holds this as long as the optimizer lives
        self._hooks: list[RemovableHandle] = []  # only while there is something to multiply
        if optimizer in _cuts:
            _cuts[optimizer].close()  # left by an earlier guard
        _cuts[optimizer] = self

    @property
    def factor(self) -> float:
        """The factor applied to the next step."""
        if self._from == 1.0 or self._good >= self._ramp:
            return 1.0
        return self._from + (1.0 - self._from) * self._good / self._ramp

    def cut(self) -> float:
        """Cuts the rates from the next step on. Returns the factor."""
        self._from, self._good = self.factor * self._factor, 0
        self._uncut = []  # a rollback inside step(closure) has restored its own rates
        self._hook()
        return self._from

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates of the next step, by group of parameters."""
        optimizer = self._optimizer()
        groups = optimizer.param_groups if optimizer is not None else []
        with detection_paused():  # a rate may be a tensor
            return tuple(float(group["lr"]) * self.factor for group in groups)

    def record_good_step(self) -> bool:
        """Counts a good step. Returns whether it has ended the ramp."""
        if self._from == 1.0:
            return False
        self._good += 1
        if self._good < self._ramp:
            return False
        self._from = 1.0
        self.close()
        return True

    def close(self) -> None:
        """Removes the hooks from the optimizer."""
        while self._hooks:
            self._hooks.pop().remove()

    def _hook(self) -> None:
        optimizer = self._optimizer()
        if not self._hooks and optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._before))
            self._hooks.append(optimizer.register_step_post_hook(self._after))

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.end_step()
        factor = self.factor
        if factor != 1.0:
            for group in optimizer.param_groups:
                cut = group["lr"] * factor
                self._uncut.append((group, cut, group["lr"]))
                group["lr"] = cut

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.end_step()

    def end_step(self) -> None:
        """Gives the groups their rates back, also after a step that has raised an error. A rate that something else has
        set since stays."""
        while self._uncut:
            group, cut, rate = self._uncut.pop()
            if group["lr"] is cut:
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the ramp."""
        return {"from": self._from, "good": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self._from, self._good = state["from"], state["good"]
        if self.factor != 1.0:
            self._hook()
