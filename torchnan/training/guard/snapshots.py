"""Snapshots of everything that a step changes, which training can be rolled back to."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from torchnan.detection import shards
from torchnan.detection.pause import detection_paused
from torchnan.training.guard.step.random_state import RandomState
from torchnan.training.storage import atomic_folder, folder_reader, rank_folders
from torchnan.training.storage.codec import decode, encode


class Stateful(Protocol):
    """An object with a state that can be restored: an optimizer, a scaler, a scheduler, a stateful data loader."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


@dataclasses.dataclass
class TrainingState:
    """Everything that a step changes.

    Attributes:
        model: has parameters and buffers.
        parts: the optimizer, and further stateful objects by name.
        data: the position in the data, if a rollback is to restore it.
    """

    model: torch.nn.Module
    parts: dict[str, Stateful]
    data: Stateful | None = None

    def state(self) -> dict[str, Any]:
        """Returns the live state: the tensors themselves, and of distributed ones this rank's shards."""
        weights = {name: shards.local(t.detach()) for name, t in _named_tensors(self.model)}
        parts = {name: _local(part.state_dict()) for name, part in self.parts.items()}
        data = None if self.data is None else self.data.state_dict()
        return {"weights": weights, "parts": parts, "data": data, "random": dataclasses.asdict(RandomState.now())}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores everything. Shares no memory with ``state`` afterwards."""
        with detection_paused(), torch.no_grad():
            live = dict(_named_tensors(self.model))
            for name, saved in state["weights"].items():
                shards.local(live[name].detach()).copy_(saved)
            for name, part in self.parts.items():
                _restore_part(part, state["parts"][name])
        if self.data is not None and state["data"] is not None:
            self.data.load_state_dict(copy.deepcopy(state["data"]))
        RandomState(**state["random"]).restore()


def _named_tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _tensors_of(state: Any) -> list[torch.Tensor]:
    """Returns the tensors of a state in the order in which `tree_map_only` visits them."""
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]


def _local(state: Any) -> Any:
    return tree_map_only(torch.Tensor, shards.local, state)


def _restore_part(part: Stateful, saved: Any) -> None:
    """Restores distributed tensors in place, since only the local shard was saved, and others as copies."""
    live, expected = _tensors_of(part.state_dict()), _tensors_of(saved)
    has_same_shapes = [shards.local(t).shape for t in live] == [t.shape for t in expected]
    targets = iter(live if has_same_shapes else ())

    def restored(tensor: torch.Tensor) -> torch.Tensor:
        target = next(targets, None)
        if target is None or not shards.is_sharded(target):
            return tensor.clone()
        shards.local(target).copy_(tensor)
        return target

    part.load_state_dict(tree_map_only(torch.Tensor, restored, _without_other_references(saved)))


class Snapshots(Protocol):
    """A bounded number of past states."""

    @property
    def steps(self) -> list[int]:
        """Steps after which snapshots were taken, oldest first."""

    def take(self, step: int) -> None:
        """Saves the current state, and drops the oldest snapshot."""

    def restore(self, step: int) -> None:
        """Restores a snapshot, and drops later ones."""


class MemorySnapshots:
    """Snapshots in CPU memory. Copies from a GPU are asynchronous, to pinned memory that is reused.

    Takes ``count`` times the memory of parameters, buffers and optimizer state: 12 bytes per parameter for AdamW in
    float32.

    Args:
        training: what is saved.
        count: maximum number of snapshots.
    """

    def __init__(self, training: TrainingState, count: int) -> None:
        self._training = training
        self._count = count
        self._saved: dict[int, Any] = {}

    @property
    def steps(self) -> list[int]:
        return list(self._saved)

    @property
    def bytes_in_memory(self) -> int:
        """Memory taken by the tensors in them."""
        return sum(tensor.nbytes for tensor in _tensors_of(self._saved))

    def take(self, step: int) -> None:
        spare = self._saved.pop(step, None)
        while len(self._saved) >= self._count:
            spare = self._saved.pop(next(iter(self._saved)))
        with detection_paused(), torch.no_grad():
            self._saved[step] = _copied(self._training.state(), spare)

    def restore(self, step: int) -> None:
        for device in {t.device for _, t in _named_tensors(self._training.model) if t.is_cuda}:
            torch.cuda.synchronize(device)  # wait for the copies
        self._training.restore(self._saved[step])
        self._saved = {taken: state for taken, state in self._saved.items() if taken <= step}


def _copied(state: Any, spare: Any) -> Any:
    """Copies a state, into the memory of ``spare`` where shapes and dtypes match."""
    targets = iter(_tensors_of(spare))

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        target = next(targets, None)
        if target is None or target.shape != tensor.shape or target.dtype != tensor.dtype:
            pinned = tensor.is_cuda
            target = torch.empty_like(tensor, device="cpu", pin_memory=pinned) if pinned else torch.empty_like(tensor)
        return target.copy_(tensor, non_blocking=True)

    return tree_map_only(torch.Tensor, copied, _without_other_references(state))


def _without_other_references(state: Any) -> Any:
    """Copies everything but tensors, which the caller copies."""
    return copy.deepcopy(state, {id(tensor): tensor for tensor in _tensors_of(state)})


class DiskSnapshots:
    """Snapshots in folders of JSON and safetensors, each written as a whole or not at all.

    Args:
        training: what is saved.
        count: maximum number of snapshots.
        folder: parent folder, the same for all ranks.
        rank: rank of this process.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, training: TrainingState, count: int, folder: Path, rank: int) -> None:
        self._training = training
        self._count = count
        self._folder = folder
        self._rank = rank
        atomic_folder.make_option_dir("snapshot_folder", folder)
        rank_folders.remove_partial(folder, rank)

    @property
    def steps(self) -> list[int]:
        return sorted(map(rank_folders.step_of, rank_folders.folders_of(self._folder, self._rank)))

    def take(self, step: int) -> None:
        document, tensors = encode(self._training.state(), name="state")
        target = self._path(step)
        atomic_folder.make_option_dir("snapshot_folder", self._folder)  # another process may have removed it since
        if target.exists():
            atomic_folder.remove(target)
        metadata = {"format": folder_reader.FORMAT, "step": step, "state": document}
        atomic_folder.write(target, {"snapshot": metadata}, {"snapshot": tensors})
        for old in self.steps[: -self._count]:
            atomic_folder.remove(self._path(old))

    def restore(self, step: int) -> None:
        documents, tensors = folder_reader.read(self._path(step))
        self._training.restore(decode(documents["snapshot"]["state"], tensors["snapshot"]))
        for later in [taken for taken in self.steps if taken > step]:
            atomic_folder.remove(self._path(later))

    def _path(self, step: int) -> Path:
        return rank_folders.folder_of(self._folder, self._rank, step)


class UserSnapshots:
    """Snapshots by the user's ``save(step)`` and ``load(step)``, such as of torch.distributed.checkpoint."""

    def __init__(self, save: Callable[[int], Any], load: Callable[[int], Any], count: int) -> None:
        self._save = save
        self._load = load
        self._count = count
        self._steps: list[int] = []

    @property
    def steps(self) -> list[int]:
        return list(self._steps)

    def take(self, step: int) -> None:
        self._save(step)
        others = [taken for taken in self._steps if taken != step]
        self._steps = [*others, step][-self._count :]

    def restore(self, step: int) -> None:
        self._load(step)
        self._steps = [taken for taken in self._steps if taken <= step]
