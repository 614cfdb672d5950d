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
            [] if self._copied else [(w, t, t._version) for w, t in tensors_in(batch, where) if _has_version(t)]
        )

    def restored(self) -> Any:
        """Returns the batch as it was before the step; with ``keep="copy"``, a new copy each time."""
        return copy.deepcopy(self._batch) if self._copied else self._batch

    def mutated_tensor(self) -> str | None:
        """Returns the path of the first tensor that was mutated since, or ``None``; a copy is never mutated."""
        return next((where for where, tensor, version in self._versions if tensor._version != version), None)


def _has_version(tensor: torch.Tensor) -> bool:
    return not tensor.is_inference()


class _BufferCopies:
    """Copies of a model's buffers, in memory that is reused from step to step."""

    def __init__(self) -> None:
        self._copies: dict[str, tuple[torch.Tensor, int]] = {}  # with the version that was copied

    def save(self, model: torch.nn.Module) -> None:
        if not _C.may_have_buffers(model):
            self._copies = {}
            return
        live = {name: shards.local(buffer).detach() for name, buffer in model.named_buffers()}
        saved = {name: self._copies.get(name) for name in live}
        stale = {name: buffer for name, buffer in live.items() if not _is_current(saved[name], buffer)}
        targets = {name: _copy_target(saved[name], buffer) for name, buffer in stale.items()}
        if stale:
            with detection_paused(), torch.no_grad():
                torch._foreach_copy_(list(targets.values()), list(stale.values()))
        fresh = {name: (targets[name], _version(buffer)) for name, buffer in stale.items()}
        self._copies = {name: fresh.get(name) or self._copies[name] for name in live}

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


def _is_current(saved: tuple[torch.Tensor, int] | None, buffer: torch.Tensor) -> bool:
    """Returns whether a saved copy still holds.

    Only integer buffers, such as large masks, can be trusted by version: kernels update running statistics without
    incrementing it.
    """
    may_change_unseen = buffer.is_floating_point() or buffer.is_complex() or buffer.is_inference()
    return saved is not None and not may_change_unseen and _alike(saved[0], buffer) and saved[1] == buffer._version


def _version(buffer: torch.Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version


def _copy_target(saved: tuple[torch.Tensor, int] | None, buffer: torch.Tensor) -> torch.Tensor:
    return saved[0] if saved is not None and _alike(saved[0], buffer) else torch.empty_like(buffer)


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
