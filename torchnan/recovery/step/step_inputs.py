"""What a training step starts from: kept so that the very same step can be run again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch

from torchnan.detection import shards
from torchnan.detection.pause import detection_paused
from torchnan.recovery.step.random_state import RandomState

Keep = Literal["reference", "copy"]


def tensors_in(value: Any, where: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested mappings, sequences and dataclasses, with the way to each: ``batch['labels']``."""
    if isinstance(value, torch.Tensor):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from tensors_in(item, f"{where}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name), f"{where}.{field.name}")


class SavedBatch:
    """One micro-batch, by reference with the versions of its tensors, or as a copy made now.

    Attributes:
        random: the random states that it was run from, where they are not those that the one before it left.
    """

    def __init__(self, batch: Any, keep: Keep, where: str, random: RandomState | None) -> None:
        self.random = random
        self._copied = keep == "copy"
        self._batch = copy.deepcopy(batch) if self._copied else batch
        self._versions = [] if self._copied else [(w, t, t._version) for w, t in tensors_in(batch, where) if _counts(t)]

    def restored(self) -> Any:
        """The batch, to run the step with once more."""
        return copy.deepcopy(self._batch) if self._copied else self._batch

    def written(self) -> str | None:
        """The first tensor that has been written to since; of a copy, none ever is."""
        return next((where for where, tensor, version in self._versions if tensor._version != version), None)


def _counts(tensor: torch.Tensor) -> bool:
    return not tensor.is_inference()  # those have no version


class _BufferCopies:
    """Copies of a model's buffers in memory that is used again step after step."""

    def __init__(self) -> None:
        self._copies: dict[str, tuple[torch.Tensor, int]] = {}  # with the version that was copied

    def take(self, model: torch.nn.Module) -> None:
        live = {name: shards.local(buffer).detach() for name, buffer in model.named_buffers()}
        kept = {name: self._copies.get(name) for name in live}
        stale = {name: buffer for name, buffer in live.items() if not _is_current(kept[name], buffer)}
        rooms = {name: _room_for(kept[name], buffer) for name, buffer in stale.items()}
        with detection_paused(), torch.no_grad():
            if stale:
                torch._foreach_copy_(list(rooms.values()), list(stale.values()))
        fresh = {name: (rooms[name], _version(buffer)) for name, buffer in stale.items()}
        self._copies = {name: fresh.get(name) or self._copies[name] for name in live}

    def restore(self, model: torch.nn.Module) -> None:
        with detection_paused(), torch.no_grad():
            for name, buffer in model.named_buffers():
                kept = self._copies.get(name)
                if kept is not None and _alike(kept[0], shards.local(buffer)):
                    shards.local(buffer).detach().copy_(kept[0])

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: kept for name, (kept, _) in self._copies.items()}


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _is_current(kept: tuple[torch.Tensor, int] | None, buffer: torch.Tensor) -> bool:
    """Integers that nobody has written, as large masks are. Kernels write running statistics without a trace."""
    may_change_unseen = buffer.is_floating_point() or buffer.is_complex() or buffer.is_inference()
    return kept is not None and not may_change_unseen and _alike(kept[0], buffer) and kept[1] == buffer._version


def _version(buffer: torch.Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version


def _room_for(kept: tuple[torch.Tensor, int] | None, buffer: torch.Tensor) -> torch.Tensor:
    return kept[0] if kept is not None and _alike(kept[0], buffer) else torch.empty_like(buffer)


class StepInputs:
    """The start of one step after another, in memory that is used again.

    Args:
        model: whose buffers the forward pass may change.
        keep: ``"reference"`` keeps batches as they are and notices writes to them; ``"copy"`` copies them.
    """

    def __init__(self, model: torch.nn.Module, keep: Keep) -> None:
        self._model = model
        self._keep = keep
        self._buffers = _BufferCopies()
        self.random = RandomState.now()
        self.batches: list[SavedBatch] = []

    def note(self) -> None:
        """A step begins now."""
        self.random = RandomState.now()
        self._buffers.take(self._model)
        self.batches = []

    def add(self, batch: Any, *, drawn_between: bool) -> None:
        """One of its micro-batches. ``drawn_between``: the program may have drawn random numbers since the last one."""
        where = f"batch {len(self.batches)}" if self.batches else "batch"
        random = RandomState.now() if drawn_between and self.batches else None
        self.batches.append(SavedBatch(batch, self._keep, where, random))

    def forget_batches(self) -> None:
        """The step is over: nothing of its data is held any longer."""
        self.batches = []

    def written(self) -> str | None:
        """What of the batches the step has written to: such a step cannot be run again."""
        return next((where for batch in self.batches if (where := batch.written()) is not None), None)

    def restore(self) -> None:
        """Random states and buffers as they were. Weights are only changed by a step that is applied."""
        self.random.restore()
        self.restore_buffers()

    def restore_buffers(self) -> None:
        """The buffers alone: a step that is thrown away leaves no trace in running statistics."""
        self._buffers.restore(self._model)

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers as they were, by name."""
        return self._buffers.tensors()
