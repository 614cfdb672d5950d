"""Where training can go back to: copies of everything that a step changes."""

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
from torchnan.recovery.step.random_state import RandomState
from torchnan.storage import atomic_folder, rank_folders
from torchnan.storage.codec import decode, encode


class Stateful(Protocol):
    """What can be gone back to: an optimizer, a scaler, a scheduler, a stateful data loader."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


@dataclasses.dataclass
class TrainingState:
    """Everything that a step changes.

    Attributes:
        model: parameters and buffers.
        parts: the optimizer and whatever else has a state, by name.
        data: the position in the data, if it is to be moved back too.
    """

    model: torch.nn.Module
    parts: dict[str, Stateful]
    data: Stateful | None = None

    @classmethod
    def of(cls, model: torch.nn.Module, parts: dict[str, Stateful | None], data: Stateful | None) -> TrainingState:
        """Of the parts that there are."""
        return cls(model, {name: part for name, part in parts.items() if part is not None}, data)

    def state(self) -> dict[str, Any]:
        """The live state: tensors are the very ones, of distributed ones this rank's parts."""
        weights = {name: shards.local(t.detach()) for name, t in _named_tensors(self.model)}
        parts = {name: _local(part.state_dict()) for name, part in self.parts.items()}
        data = None if self.data is None else self.data.state_dict()
        return {"weights": weights, "parts": parts, "data": data, "random": dataclasses.asdict(RandomState.now())}

    def restore(self, state: dict[str, Any]) -> None:
        """Makes everything as it was then. ``state`` shares no memory with it afterwards."""
        with detection_paused(), torch.no_grad():
            live = dict(_named_tensors(self.model))
            for name, kept in state["weights"].items():
                shards.local(live[name].detach()).copy_(kept)
            for name, part in self.parts.items():
                _restore_part(part, state["parts"][name])
        if self.data is not None and state["data"] is not None:
            self.data.load_state_dict(copy.deepcopy(state["data"]))
        RandomState(**state["random"]).restore()


def _named_tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _tensors_of(state: Any) -> list[torch.Tensor]:
    """In the order in which `tree_map_only` meets them."""
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]


def _local(state: Any) -> Any:
    return tree_map_only(torch.Tensor, shards.local, state)


def _restore_part(part: Stateful, kept: Any) -> None:
    """Distributed tensors are filled where they are, since only the local part was kept; others are given as copies."""
    live, wanted = _tensors_of(part.state_dict()), _tensors_of(kept)
    is_alike = [shards.local(t).shape for t in live] == [t.shape for t in wanted]
    places = iter(live if is_alike else ())

    def restored(tensor: torch.Tensor) -> torch.Tensor:
        place = next(places, None)
        if place is None or not shards.is_sharded(place):
            return tensor.clone()
        shards.local(place).copy_(tensor)
        return place

    part.load_state_dict(tree_map_only(torch.Tensor, restored, _without_other_references(kept)))


class Snapshots(Protocol):
    """A few past states."""

    @property
    def steps(self) -> list[int]:
        """Steps after which one was taken, oldest first."""

    def take(self, step: int) -> None:
        """Keeps the state as it is, and lets go of the oldest."""

    def restore(self, step: int) -> None:
        """Goes back to one; later ones are let go of."""


class MemorySnapshots:
    """In memory of the CPU. Copies from a GPU are asynchronous, to pinned memory that is used again.

    Memory: ``keep`` times parameters, buffers and optimizer state; for AdamW in float32 12 bytes a parameter.
    """

    def __init__(self, training: TrainingState, keep: int) -> None:
        self._training = training
        self._keep = keep
        self._kept: dict[int, Any] = {}

    @property
    def steps(self) -> list[int]:
        return list(self._kept)

    @property
    def bytes_in_memory(self) -> int:
        """Of the tensors in them."""
        return sum(tensor.nbytes for tensor in _tensors_of(self._kept))

    def take(self, step: int) -> None:
        spare = self._kept.pop(step, None)
        while len(self._kept) >= self._keep:
            spare = self._kept.pop(next(iter(self._kept)))
        with detection_paused(), torch.no_grad():
            self._kept[step] = _copied(self._training.state(), spare)

    def restore(self, step: int) -> None:
        for device in {t.device for _, t in _named_tensors(self._training.model) if t.is_cuda}:
            torch.cuda.synchronize(device)  # the copies have been made
        self._training.restore(self._kept[step])
        self._kept = {kept: state for kept, state in self._kept.items() if kept <= step}


def _copied(state: Any, spare: Any) -> Any:
    """Into the memory of ``spare``, as far as it fits."""
    places = iter(_tensors_of(spare))

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        room = next(places, None)
        if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
            pinned = tensor.is_cuda
            room = torch.empty_like(tensor, device="cpu", pin_memory=pinned) if pinned else torch.empty_like(tensor)
        return room.copy_(tensor, non_blocking=True)

    return tree_map_only(torch.Tensor, copied, _without_other_references(state))


def _without_other_references(state: Any) -> Any:
    """Numbers and lists that the program goes on changing are copied; tensors are left for the caller to copy."""
    return copy.deepcopy(state, {id(tensor): tensor for tensor in _tensors_of(state)})


class DiskSnapshots:
    """In folders of JSON and safetensors, each there as a whole or not at all.

    Args:
        where: a atomic_folder, for all ranks.
        rank: of this process.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, training: TrainingState, keep: int, where: Path, rank: int) -> None:
        self._training = training
        self._keep = keep
        self._where = where
        self._rank = rank
        atomic_folder.make(where)
        rank_folders.remove_partial(where, rank)

    @property
    def steps(self) -> list[int]:
        return sorted(map(rank_folders.step_of, rank_folders.folders_of(self._where, self._rank)))

    def take(self, step: int) -> None:
        document, tensors = encode(self._training.state(), name="state")
        target = self._path(step)
        if target.exists():
            atomic_folder.remove(target)
        about = {"format": atomic_folder.FORMAT, "step": step, "state": document}
        atomic_folder.write(target, {"snapshot": about}, {"snapshot": tensors})
        for old in self.steps[: -self._keep]:
            atomic_folder.remove(self._path(old))

    def restore(self, step: int) -> None:
        documents, tensors = atomic_folder.read(self._path(step))
        self._training.restore(decode(documents["snapshot"]["state"], tensors["snapshot"]))
        for later in [kept for kept in self.steps if kept > step]:
            atomic_folder.remove(self._path(later))

    def _path(self, step: int) -> Path:
        return rank_folders.folder_of(self._where, self._rank, step)


class UserSnapshots:
    """By functions of the user's: ``save(step)`` and ``load(step)``, as of torch.distributed.checkpoint."""

    def __init__(self, save: Callable[[int], Any], load: Callable[[int], Any], keep: int) -> None:
        self._save = save
        self._load = load
        self._keep = keep
        self._steps: list[int] = []

    @property
    def steps(self) -> list[int]:
        return list(self._steps)

    def take(self, step: int) -> None:
        self._save(step)
        others = [kept for kept in self._steps if kept != step]
        self._steps = [*others, step][-self._keep :]

    def restore(self, step: int) -> None:
        self._load(step)
        self._steps = [kept for kept in self._steps if kept <= step]
