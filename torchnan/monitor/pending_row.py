"""A row in the making: what is known at once, and what is still on its way."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchnan.monitor.async_copy import AsyncCopy, to_float
from torchnan.monitor.batch_digest import BatchDigest
from torchnan.monitor.row import Row

Scalar = float | torch.Tensor


class PendingRow:
    """Of one step.

    Args:
        row: what is known.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self._values: dict[str, float] = {}
        self._lists: dict[str, int] = {}
        self._digest: BatchDigest | None = None
        self._copies: list[AsyncCopy] = []
        self._samples: list[AsyncCopy] = []

    def add(self, single: Mapping[str, Scalar | None], several: Mapping[str, Sequence[Scalar]]) -> None:
        """Numbers that may still be tensors.

        Args:
            single: ``grad_norm``, ``loss_scale``; and ``next_scale``, what that has become after the step, from which
                is seen whether it was skipped.
            several: with an index: ``loss`` of each micro-batch; ``lr``, ``weight_norm``, ``update_ratio`` of each
                group.
        """
        self._lists.update({name: len(values) for name, values in several.items() if values})
        given: dict[str, Scalar] = {name: value for name, value in single.items() if value is not None}
        given.update({f"{name}/{i}": value for name, values in several.items() for i, value in enumerate(values)})
        self._values.update({name: value for name, value in given.items() if not isinstance(value, torch.Tensor)})
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        if tensors:
            self._copies.append(AsyncCopy(tensors))

    def add_batch(self, batch: Any) -> None:
        """A batch of the step, or one more of its micro-batches."""
        if self._digest is None:
            self._digest = BatchDigest()
        samples = self._digest.add(batch)
        if samples:
            self._samples.append(AsyncCopy(samples))

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`finish` waits for nothing."""
        return all(copy.is_ready for copy in (*self._copies, *self._samples))

    def finish(self) -> Row:
        """The row, with all that was added since this was last asked. Waits for what is not there yet."""
        for copy in self._copies:
            self._values.update({name: to_float(tensor) for name, tensor in copy.values().items()})
        self._copies = []
        row, values = self.row, self._values
        lists = {name: [values[f"{name}/{i}"] for i in range(length)] for name, length in self._lists.items()}
        if "loss" in lists:
            row.loss = statistics.fmean(lists.pop("loss"))
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
