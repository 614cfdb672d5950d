"""A row that waits for numbers from a device."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchnan.training.monitor.async_copy import AsyncCopy, to_floats
from torchnan.training.monitor.batch_digest import BatchDigest
from torchnan.training.monitor.options import as_scalar
from torchnan.training.monitor.row import Row

Scalar = float | torch.Tensor


class PendingRow:
    """A row that is still being filled.

    Args:
        row: the values that are known already.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self._values: dict[str, float] = {}
        self._lists: dict[str, int] = {}
        self._digest: BatchDigest | None = None
        self._copies: list[AsyncCopy] = []
        self._samples: list[AsyncCopy] = []

    def add(self, single: Mapping[str, Scalar | None], several: Mapping[str, Sequence[Scalar]]) -> None:
        """Adds numbers, which may still be tensors.

        Args:
            single: ``grad_norm``, ``loss_scale``; and ``next_scale``, the loss scale after the step, which shows
                whether the step was skipped.
            several: ``loss`` of each micro-batch; ``lr``, ``weight_norm``, ``update_ratio`` of each parameter group.
        """
        given = list(single.items())
        for name, values in several.items():
            if values:
                self._lists[name] = len(values)
                given += [(f"{name}/{i}", value) for i, value in enumerate(values)]
        tensors = [(name, value) for name, value in given if isinstance(value, torch.Tensor)]
        numbers = AsyncCopy.numbers_on_host([tensor for _, tensor in tensors])  # at once: the program may modify them
        here = {name: number for (name, _), number in zip(tensors, numbers, strict=True) if number is not None}
        elsewhere = {name: tensor for name, tensor in tensors if name not in here}
        self._values.update({name: value for name, value in given if isinstance(value, float)}, **here)
        if elsewhere:
            self._copies.append(AsyncCopy(elsewhere))

    def add_batch(self, batch: Any) -> None:
        """Adds the batch of the step, or one of its micro-batches."""
        if self._digest is None:
            self._digest = BatchDigest()
        samples = self._digest.add(batch)
        if samples:
            self._samples.append(AsyncCopy(samples))

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`finish` returns without waiting."""
        return all(copy.is_ready for copy in (*self._copies, *self._samples))

    def finish(self) -> Row:
        """Returns the row with all numbers added so far; waits for those that have not arrived."""
        for copy in self._copies:
            self._values.update(to_floats(copy.values()))
        self._copies = []
        row, values = self.row, self._values
        lists = {name: [values[f"{name}/{i}"] for i in range(length)] for name, length in self._lists.items()}
        if "loss" in lists:
            losses = lists.pop("loss")
            row.loss = losses[0] if len(losses) == 1 else statistics.fmean(losses)
        for name, numbers in lists.items():
            setattr(row, name, numbers)
        row.grad_norm = values.get("grad_norm", row.grad_norm)
        row.loss_scale = values.get("loss_scale", row.loss_scale)
        if row.skipped is None and row.loss_scale is not None and "next_scale" in values:
            row.skipped = values["next_scale"] < row.loss_scale
        if self._digest is not None:
            samples = [copy.values() for copy in self._samples]
            row.batch_digest = self._digest.hexdigest({name: t for values in samples for name, t in values.items()})
        return row


def learning_rates(optimizer: torch.optim.Optimizer | None) -> list[Scalar]:
    """Returns the learning rates of the parameter groups."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [number for group in groups if (number := as_scalar("lr", group.get("lr"))) is not None]


def current_loss_scale(scaler: torch.amp.GradScaler | None) -> Scalar | None:
    """Returns a copy of the loss scale on its device; 1 for a disabled scaler, ``None`` without one."""
    if scaler is not None and not scaler.is_enabled():
        return 1.0
    scale: torch.Tensor | None = None if scaler is None else scaler._scale
    return None if scale is None else scale.detach().clone()
