"""A row in the making: what is known at once, and what is still on its way."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchnan.monitor.async_copy import Arrival, number
from torchnan.monitor.batch_digest import BatchDigest
from torchnan.monitor.row import Row

Given = float | torch.Tensor


class Draft:
    """Of one step.

    Args:
        row: what is known.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self._known: dict[str, float] = {}
        self._lists: dict[str, int] = {}
        self._digest: BatchDigest | None = None
        self._arrivals: list[Arrival] = []
        self._samples: list[Arrival] = []

    def add(self, single: Mapping[str, Given | None], several: Mapping[str, Sequence[Given]]) -> None:
        """Numbers that may still be tensors.

        Args:
            single: ``grad_norm``, ``loss_scale``; and ``next_scale``, what that has become after the step, from which
                is seen whether it was skipped.
            several: with an index: ``loss`` of each micro-batch; ``lr``, ``weight_norm``, ``update_ratio`` of each
                group.
        """
        self._lists.update({name: len(values) for name, values in several.items() if values})
        given: dict[str, Given] = {name: value for name, value in single.items() if value is not None}
        given.update({f"{name}/{i}": value for name, values in several.items() for i, value in enumerate(values)})
        self._known.update({name: value for name, value in given.items() if not isinstance(value, torch.Tensor)})
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        if tensors:
            self._arrivals.append(Arrival(tensors))

    def add_batch(self, batch: Any) -> None:
        """A batch of the step, or one more of its micro-batches."""
        if self._digest is None:
            self._digest = BatchDigest()
        samples = self._digest.add(batch)
        if samples:
            self._samples.append(Arrival(samples))

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`finish` waits for nothing."""
        return all(arrival.is_here for arrival in (*self._arrivals, *self._samples))

    def finish(self) -> Row:
        """The row, with all that was added since this was last asked. Waits for what is not there yet."""
        for arrival in self._arrivals:
            self._known.update({name: number(tensor) for name, tensor in arrival.values().items()})
        self._arrivals = []
        row, known = self.row, self._known
        lists = {name: [known[f"{name}/{i}"] for i in range(length)] for name, length in self._lists.items()}
        if "loss" in lists:
            row.loss = statistics.fmean(lists.pop("loss"))
        for name, numbers in lists.items():
            setattr(row, name, numbers)
        row.grad_norm = known.get("grad_norm", row.grad_norm)
        row.loss_scale = known.get("loss_scale", row.loss_scale)
        if row.skipped is None and row.loss_scale is not None and "next_scale" in known:
            row.skipped = known["next_scale"] < row.loss_scale
        if self._digest is not None:
            brought = [arrival.values() for arrival in self._samples]
            row.batch_digest = self._digest.text({name: t for values in brought for name, t in values.items()})
        return row
