"""Saves the inputs of a training step, so that exactly the same step can be run again."""

from __future__ import annotations

import copy
from typing import Any, Literal

from torchnan.detection.nested import tensors_in
from torchnan.training.guard.step.buffers import Buffers
from torchnan.training.guard.step.random_state import RandomState, RandomStateReader

Keep = Literal["reference", "copy"]


class SavedBatch:
    """One micro-batch, saved by reference with the versions of its tensors, or as a copy.

    Attributes:
        random: the random states before it ran; ``None`` if nothing was drawn since the previous micro-batch.
    """

    def __init__(self, batch: Any, keep: Keep, where: str, random: RandomState | None) -> None:
        self.random = random
        self._copied = keep == "copy"
        self._batch = copy.deepcopy(batch) if self._copied else batch
        self._versions = (
            [] if self._copied else [(w, t, t._version) for w, t in tensors_in(batch, where) if not t.is_inference()]
        )

    def restored(self) -> Any:
        """Returns the batch as it was before the step; with ``keep="copy"``, a new copy each time."""
        return copy.deepcopy(self._batch) if self._copied else self._batch

    def mutated_tensor(self) -> str | None:
        """Returns the path of the first tensor that was mutated since, or ``None``; a copy is never mutated."""
        return next((where for where, tensor, version in self._versions if tensor._version != version), None)


class StepInputs:
    """The inputs of the current step: batches, buffers and random states.

    Args:
        buffers: those that the forward pass may change.
        keep: ``"reference"`` saves batches by reference and detects mutations; ``"copy"`` copies them.

    Attributes:
        random: the random states at the start of the step.
        batches: the micro-batches of the step.
        buffers: the buffers, with copies from before the step.
    """

    def __init__(self, buffers: Buffers, keep: Keep) -> None:
        self._keep = keep
        self.buffers = buffers
        self._reader = RandomStateReader()
        self.random = self._reader.now()
        self.batches: list[SavedBatch] = []

    def begin_step(self) -> None:
        """Saves random states and buffers, and drops the batches of the previous step."""
        self.random = self._reader.now()
        self.buffers.save()
        self.batches = []

    def add(self, batch: Any, *, drawn_between: bool) -> None:
        """Saves a micro-batch.

        Args:
            batch: the micro-batch.
            drawn_between: whether user code may have drawn random numbers since the previous one.
        """
        where = f"batch {len(self.batches)}" if self.batches else "batch"
        random = self._reader.now() if drawn_between and self.batches else None
        self.batches.append(SavedBatch(batch, self._keep, where, random))

    def now(self) -> tuple[RandomState, list[SavedBatch]]:
        """Returns the inputs of the step without its buffers, to be given back to :meth:`go_back_to`."""
        return self.random, self.batches

    def go_back_to(self, inputs: tuple[RandomState, list[SavedBatch]]) -> None:
        """Makes the inputs of another step the current ones. The saved buffers stay."""
        self.random, self.batches = inputs

    def forget_batches(self) -> None:
        """Drops the references to the step's batches: the step is over."""
        self.batches = []

    def mutated_tensor(self) -> str | None:
        """Returns the path of the first tensor that the step mutated, or ``None``. Such a step cannot be replayed."""
        return next((where for batch in self.batches if (where := batch.mutated_tensor()) is not None), None)

    def restore(self) -> None:
        """Restores random states and buffers. Weights need no restoring: only an applied step changes them."""
        self.random.restore()
        self.buffers.restore()
