"""Saves the inputs of a training step, so that exactly the same step can be run again."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch

from torchnan._load import _C
from torchnan.detection import shards
from torchnan.detection.nested import tensors_in
from torchnan.detection.pause import detection_paused
from torchnan.training.guard.step.random_state import RandomState

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


class _BufferCopies:
    """Copies of a model's buffers, in memory that is reused from step to step."""

    def __init__(self) -> None:
        self._copies: dict[str, tuple[torch.Tensor, int]] = {}  # with the version that was copied

    def save(self, model: torch.nn.Module) -> None:
        if not _C.may_have_buffers(model):
            self._copies = {}
            return
        copies: dict[str, tuple[torch.Tensor, int]] = {}
        stale, targets = [], []
        for name, buffer in model.named_buffers():
            live = shards.local(buffer).detach()
            copy, version = self._copies.get(name, (None, 0))
            if copy is None or not _alike(copy, live):
                copy = torch.empty_like(live)
            elif not _may_change_unseen(live) and version == live._version:
                copies[name] = copy, version
                continue
            stale.append(live)
            targets.append(copy)
            copies[name] = copy, 0 if live.is_inference() else live._version
        if stale:
            with detection_paused(), torch.no_grad():
                torch._foreach_copy_(targets, stale)
        self._copies = copies

    def restore(self, model: torch.nn.Module) -> None:
        with detection_paused(), torch.no_grad():
            for name, buffer in model.named_buffers():
                saved = self._copies.get(name)
                if saved is not None and _alike(saved[0], shards.local(buffer)):
                    shards.local(buffer).detach().copy_(saved[0])

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: saved for name, (saved, _) in self._copies.items()}


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _may_change_unseen(buffer: torch.Tensor) -> bool:
    """Returns whether the version of a buffer says nothing about its values.

    Only integer buffers, such as large masks, can be trusted by version: kernels update running statistics without
    incrementing it.
    """
    return buffer.is_floating_point() or buffer.is_complex() or buffer.is_inference()


class StepInputs:
    """The inputs of the current step: batches, buffers and random states, in memory that is reused from step to step.

    Args:
        model: the model whose buffers the forward pass may change.
        keep: ``"reference"`` saves batches by reference and detects mutations; ``"copy"`` copies them.

    Attributes:
        random: the random states at the start of the step.
        batches: the micro-batches of the step.
    """

    def __init__(self, model: torch.nn.Module, keep: Keep) -> None:
        self._model = model
        self._keep = keep
        self._buffers = _BufferCopies()
        self.random = RandomState.now()
        self.batches: list[SavedBatch] = []

    def begin_step(self) -> None:
        """Saves random states and buffers, and drops the batches of the previous step."""
        self.random = RandomState.now()
        self._buffers.save(self._model)
        self.batches = []

    def add(self, batch: Any, *, drawn_between: bool) -> None:
        """Saves a micro-batch.

        Args:
            batch: the micro-batch.
            drawn_between: whether user code may have drawn random numbers since the previous one.
        """
        where = f"batch {len(self.batches)}" if self.batches else "batch"
        random = RandomState.now() if drawn_between and self.batches else None
        self.batches.append(SavedBatch(batch, self._keep, where, random))

    def forget_batches(self) -> None:
        """Drops the references to the step's batches: the step is over."""
        self.batches = []

    def mutated_tensor(self) -> str | None:
        """Returns the path of the first tensor that the step mutated, or ``None``. Such a step cannot be replayed."""
        return next((where for batch in self.batches if (where := batch.mutated_tensor()) is not None), None)

    def restore(self) -> None:
        """Restores random states and buffers. Weights need no restoring: only an applied step changes them."""
        self.random.restore()
        self.restore_buffers()

    def restore_buffers(self) -> None:
        """Restores the buffers only, so that a discarded step leaves no trace in running statistics."""
        self._buffers.restore(self._model)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Returns the saved buffers by name."""
        return self._buffers.tensors()
