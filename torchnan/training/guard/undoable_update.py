"""Steps an optimizer before it is known whether the step is good, where its device can undo the step by itself."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from torch.optim import optimizer as of_pytorch

from torchnan._load import _C
from torchnan.training.guard.model_update import ModelUpdate
from torchnan.training.guard.step.buffers import Buffers
from torchnan.training.guard.step.forward_backward import UnreadRun

# They write into the parameters that have a gradient and into the tensors of their state, which they make in the first
# step, and to nothing else.
_KNOWN = (SGD, Adam, AdamW, NAdam, RAdam, Adagrad, RMSprop)


class UndoableUpdate:
    """Decides whether an update can be undone, and begins it.

    Args:
        update: steps the optimizer and the scheduler.
        buffers: those that the step has changed, with copies.
        max_bytes: the most memory of the device to reserve for what all guards may undo.
    """

    def __init__(self, update: ModelUpdate, buffers: Buffers, max_bytes: int) -> None:
        self._update = update
        self._buffers = buffers
        self._max_bytes = max_bytes

    def begin(self, run: UnreadRun) -> BegunUpdate | None:
        """Returns an update that may be made now; ``None`` if the run has to be read first."""
        written = _written_by(self._update.optimizer)
        buffers = self._buffers.changed()
        scheduler = self._update.scheduler
        if written is None or buffers is None or not _is_known_scheduler(scheduler):
            return None
        on_host = _HostState(self._update.optimizer, scheduler)
        undo = run.measurement.begin_step(written, buffers, self._max_bytes)
        return None if undo is None else BegunUpdate(self._update, undo, on_host)


class BegunUpdate:
    """An update that its device undoes if the measurement finds something that is not finite.

    Args:
        update: steps the optimizer and the scheduler.
        undo: undoes what it writes into tensors.
        on_host: the rest.
    """

    def __init__(self, update: ModelUpdate, undo: _C.UndoableStep, on_host: _HostState) -> None:
        self._update = update
        self._undo = undo
        self._on_host = on_host

    def apply(self) -> None:
        """Steps the optimizer and the scheduler, and lets the device undo that."""
        try:
            self._update.apply(0.0)  # gradients that are clipped are read before
        finally:
            self._undo.end()
            self._on_host.end()

    def undo_on_host(self) -> None:
        """Undoes what the device cannot: counters, rates and tensors on the host."""
        self._undo.undo_on_host()
        self._on_host.restore()


class _HostState:
    """What an update changes on the host besides tensors: the options of groups, and the scheduler. What the program
    changes after the update stays."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self._groups = [(group, dict(group)) for group in optimizer.param_groups]
        self._changed: list[tuple[dict[str, Any], str, Any, Any]] = []  # options of groups, before and after
        self._scheduler = scheduler
        self._state = None if scheduler is None else copy.deepcopy(scheduler.state_dict())
        self._steps: Any = None

    def end(self) -> None:
        """Notes what the update has changed."""
        for group, before in self._groups:
            for option, value in before.items():
                if group[option] is not value:
                    self._changed.append((group, option, value, group[option]))
        self._steps = _steps_of(self._scheduler)

    def restore(self) -> None:
        """Undoes it."""
        for group, option, before, after in self._changed:
            if group.get(option) is after:
                group[option] = before
        if self._state is not None and _steps_of(self._scheduler) == self._steps:
            self._scheduler.load_state_dict(self._state)


def _steps_of(scheduler: Any) -> Any:
    return getattr(scheduler, "last_epoch", None), getattr(scheduler, "_step_count", None)


def _written_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor] | None:
    """Returns the tensors that the next step of an optimizer writes; ``None`` if that is not known."""
    if type(optimizer) not in _KNOWN or _has_hooks(optimizer):
        return None
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        return None
    written: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        if group.get("differentiable") or any(isinstance(value, torch.Tensor) for value in group.values()):
            return None
        makes_state = not isinstance(optimizer, SGD) or group["momentum"] != 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            kept = [value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor)]
            if makes_state and not kept:
                return None  # the first step of this parameter
            written.append(parameter)
            written += kept
    return written


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or of_pytorch._global_optimizer_pre_hooks
        or of_pytorch._global_optimizer_post_hooks
    )


def _is_known_scheduler(scheduler: Any) -> bool:
    return scheduler is None or type(scheduler).__module__ == "torch.optim.lr_scheduler"
