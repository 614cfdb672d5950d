"""Snapshots of everything that a step changes, which training can be rolled back to."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from torchnan.config.text import printable
from torchnan.detection import shards
from torchnan.detection.pause import detection_paused
from torchnan.training.guard.module_state import ModuleState
from torchnan.training.guard.optimizer_state import OptimizerState, saves_itself
from torchnan.training.guard.step.gradients import nonfinite_among
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
        also: further modules, optimizers and stateful objects by name, such as an average of the model.
        is_expected: returns whether a non-finite buffer of the model is meant to be so, such as a mask.
    """

    model: torch.nn.Module
    parts: dict[str, Stateful]
    data: Stateful | None = None
    also: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_expected: Callable[[str], bool] = lambda name: False

    def __post_init__(self) -> None:
        modules = {name: part for name, part in self.also.items() if isinstance(part, torch.nn.Module)}
        self._modules = {"": ModuleState(self.model)}
        self._modules |= {name: ModuleState(part, f"{name}.") for name, part in modules.items()}
        self._parts = {**self.parts, **{name: part for name, part in self.also.items() if name not in modules}}
        self._optimizers = {
            name: OptimizerState(
                cast(torch.optim.Optimizer, part), name, functools.partial(_names_in, list(self._modules.values()))
            )
            for name, part in self._parts.items()
            if not saves_itself(part)
        }

    def not_restored(self) -> list[str]:
        """Returns what a restore is known to leave as it is."""
        return [text for state in self._optimizers.values() for text in state.not_restored()]

    def state(self) -> dict[str, Any]:
        """Returns the live state: the tensors themselves, and of distributed ones this rank's shards."""
        outside: dict[str, torch.Tensor] = {}
        return {
            "modules": {name: module.state() for name, module in self._modules.items()},
            "optimizers": {name: optimizer.state(outside) for name, optimizer in self._optimizers.items()},
            "outside": outside,  # parameters of optimizers that are in no module
            "parts": {
                name: _local(part.state_dict()) for name, part in self._parts.items() if name not in self._optimizers
            },
            "data": None if self.data is None else self.data.state_dict(),
            "random": dataclasses.asdict(RandomState.now()),
        }

    def nonfinite(self) -> tuple[str, ...]:
        """Returns the names of parameters, buffers and optimizer state with non-finite elements."""
        named: list[tuple[str, torch.Tensor]] = []
        for state in self._modules.values():
            held = state.state()
            named += [(f"{state.prefix}{name}", tensor) for name, tensor in held["parameters"].items()]
            named += [
                (f"{state.prefix}{name}", tensor)
                for name, tensor in held["buffers"].items()
                if tensor is not None and not (state.prefix == "" and self.is_expected(name))
            ]
        outside: dict[str, torch.Tensor] = {}
        for name, optimizer in self._optimizers.items():
            entries = optimizer.state(outside)["state"]
            named += [
                (f"state {key!r} of {parameter} in {name}", value)
                for parameter, entry in entries.items()
                for key, value in entry.items()
                if isinstance(value, torch.Tensor)
            ]
        return nonfinite_among([*named, *outside.items()])

    def restore(self, state: dict[str, Any]) -> None:
        """Restores everything that existed then, and leaves what has been added since. Shares no memory with ``state``
        afterwards.

        Raises:
            ValueError: something has another shape now, or is gone, or another version of torchnan wrote the state.
                Nothing has been written.
        """
        obstacle = next(filter(None, self._obstacles(state)), None)
        if obstacle is not None:
            raise ValueError(f"{printable(obstacle, 1000)}. Nothing has been restored")
        outside = state["outside"]
        with detection_paused(), torch.no_grad():
            for name, saved in state["parts"].items():  # before what cannot fail: they run code of the user's
                _restore_part(self._parts[name], saved)
            for name, saved in state["modules"].items():
                self._modules[name].restore(saved)
            for name, saved in state["optimizers"].items():
                self._optimizers[name].restore(saved, outside)
        if self.data is not None and state["data"] is not None:
            self.data.load_state_dict(copy.deepcopy(state["data"]))
        RandomState(**state["random"]).restore()

    def _obstacles(self, state: dict[str, Any]) -> Iterator[str]:
        """Yields why a state cannot be restored, and "" for what is no obstacle."""
        if missing := [repr(part) for part in _PARTS if part not in state]:
            yield (
                f"the snapshot has no {', '.join(missing)}: another version of torchnan wrote it. Go on with that "
                "version, or load a checkpoint of your own and give another snapshot_folder"
            )
        for part, held in (("modules", self._modules), ("optimizers", self._optimizers), ("parts", self._parts)):
            if gone := [repr(name) for name in state[part] if name not in held]:
                yield f"the snapshot has the state of {', '.join(gone)}: give the guard that again, in also= if it was"
        for name, saved in state["modules"].items():
            yield self._modules[name].obstacle(saved)
        for optimizer in self._optimizers.values():
            yield optimizer.obstacle(state["outside"])


_PARTS = ("modules", "optimizers", "outside", "parts", "data", "random")


def _names_in(modules: list[ModuleState]) -> dict[int, str]:
    """Returns the names of the parameters in modules, by ``id()``."""
    return {
        id(parameter): f"{state.prefix}{name}"
        for state in modules
        for name, parameter in state.module.named_parameters()
    }


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
    """Past states of this rank. Which of them are kept is decided by all ranks together."""

    @property
    def steps(self) -> list[int]:
        """Steps after which snapshots were taken, oldest first."""

    def take(self, step: int, *, instead_of: int | None) -> None:
        """Saves the current state.

        Args:
            step: the step after which it is taken.
            instead_of: a snapshot that is dropped next, whose memory may be used; then it is gone even if this fails.
        """

    def drop(self, step: int) -> None:
        """Removes a snapshot."""

    def restore(self, step: int) -> None:
        """Restores a snapshot."""


class MemorySnapshots:
    """Snapshots in CPU memory. Copies from a GPU are asynchronous, to pinned memory that is reused.

    Each takes the memory of parameters, buffers and optimizer state: 12 bytes per parameter for AdamW in float32.

    Args:
        training: what is saved.
    """

    def __init__(self, training: TrainingState) -> None:
        self._training = training
        self._saved: dict[int, Any] = {}

    @property
    def steps(self) -> list[int]:
        return list(self._saved)

    @property
    def bytes_in_memory(self) -> int:
        """Memory taken by the tensors in them."""
        return sum(tensor.nbytes for tensor in _tensors_of(self._saved))

    def take(self, step: int, *, instead_of: int | None) -> None:
        with detection_paused(), torch.no_grad():
            state = self._training.state()  # may fail, as it runs code of the user's: before anything is dropped
            spare = self._saved.pop(instead_of, None) if instead_of is not None else None
            self._saved[step] = _copied(state, spare)

    def drop(self, step: int) -> None:
        del self._saved[step]

    def restore(self, step: int) -> None:
        for device in {t.device for t in self._training.model.parameters() if t.is_cuda}:
            torch.cuda.synchronize(device)  # wait for the copies
        self._training.restore(self._saved[step])


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
        folder: parent folder, the same for all ranks.
        rank: rank of this process.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, training: TrainingState, folder: Path, rank: int) -> None:
        self._training = training
        self._folder = folder
        self._rank = rank
        atomic_folder.make_option_dir("snapshot_folder", folder)
        rank_folders.remove_partial(folder, rank)

    @property
    def steps(self) -> list[int]:
        return sorted(map(rank_folders.step_of, rank_folders.folders_of(self._folder, self._rank)))

    def take(self, step: int, *, instead_of: int | None) -> None:
        document, tensors = encode(self._training.state(), name="state")
        target = self._path(step)
        atomic_folder.make_option_dir("snapshot_folder", self._folder)  # another process may have removed it since
        if target.exists():
            atomic_folder.remove(target)
        metadata = {"format": folder_reader.FORMAT, "step": step, "state": document}
        atomic_folder.write(target, {"snapshot": metadata}, {"snapshot": tensors})

    def drop(self, step: int) -> None:
        atomic_folder.remove(self._path(step))

    def restore(self, step: int) -> None:
        documents, tensors = folder_reader.read(self._path(step))
        self._training.restore(decode(documents["snapshot"]["state"], tensors["snapshot"]))

    def _path(self, step: int) -> Path:
        return rank_folders.folder_of(self._folder, self._rank, step)


class UserSnapshots:
    """Snapshots by the user's ``save(step)`` and ``load(step)``, such as of torch.distributed.checkpoint."""

    def __init__(self, save: Callable[[int], Any], load: Callable[[int], Any]) -> None:
        self._save = save
        self._load = load
        self._steps: list[int] = []

    @property
    def steps(self) -> list[int]:
        return list(self._steps)

    def take(self, step: int, *, instead_of: int | None) -> None:
        self._save(step)
        self._steps.append(step)

    def drop(self, step: int) -> None:
        self._steps.remove(step)

    def restore(self, step: int) -> None:
        self._load(step)
