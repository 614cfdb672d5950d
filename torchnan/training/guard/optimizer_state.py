"""The state of an optimizer for a snapshot: by parameter, with attributes that its state_dict() leaves out.

``Optimizer.load_state_dict()`` finds parameters by their place, so it fails once a group has been added, and it
converts state to the dtype of the parameter. Optimizers that bring their own ``state_dict()`` are saved by that.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from torchnan.config.text import type_name
from torchnan.detection import shards

# Attributes of every optimizer: saved otherwise, or no state.
_STANDARD = frozenset(("state", "param_groups", "defaults", "step", "_warned_capturable_if_run_uncaptured"))
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor)
_UNCHANGING = (
    torch.device,
    torch.dtype,
    torch.nn.Module,
    type,
    types.ModuleType,
    torch.nn.Parameter,
)


def saves_itself(optimizer: object) -> bool:
    """Returns whether an object is not an optimizer with the usual ``state_dict()``."""
    if not isinstance(optimizer, Optimizer):
        return True
    cls = type(optimizer)
    if cls.state_dict is not Optimizer.state_dict or cls.load_state_dict is not Optimizer.load_state_dict:
        return True
    hooks = (getattr(optimizer, f"_optimizer_{of}_hooks", None) for of in _STATE_HOOKS)
    return any(hooks)


_STATE_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")


class OptimizerState:
    """Saves and restores one optimizer with the usual ``state_dict()``, and optimizers among its attributes.

    Args:
        optimizer: the optimizer.
        name: in messages: ``"optimizer"``.
        names_of: returns the names of parameters, by ``id()``, as they are now.
    """

    def __init__(self, optimizer: Optimizer, name: str, names_of: Callable[[], dict[int, str]]) -> None:
        self._optimizer = optimizer
        self._name = name
        self._names_of = names_of
        inner = {of: one for of, one in vars(optimizer).items() if not saves_itself(one) and one is not optimizer}
        self._inner = {of: OptimizerState(one, f"{name}.{of}", names_of) for of, one in inner.items()}

    def not_restored(self) -> list[str]:
        """Returns the attributes that are not saved."""
        lost = [
            f"{self._name}.{name} (a {type_name(value)})"
            for name, value in self._attributes()
            if not _is_plain(value) and not isinstance(value, _UNCHANGING) and not callable(value)
        ]
        return lost + [text for inner in self._inner.values() for text in inner.not_restored()]

    def state(self, outside: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Returns the live state. Adds parameters that are in no module to ``outside``."""
        live = self._live()
        names = {id(parameter): name for name, parameter in live.items()}
        known = self._names_of()
        for name, parameter in live.items():
            if id(parameter) not in known:
                outside[name] = shards.local(parameter.detach())
        groups = [
            {
                "names": [names[id(parameter)] for parameter in group["params"]],
                "options": {option: value for option, value in group.items() if option != "params"},
            }
            for group in self._optimizer.param_groups
        ]
        entries = self._optimizer.state
        by_name = {names[id(key)]: dict(entries[key]) for key in entries if id(key) in names}
        other = {key: value for key, value in entries.items() if isinstance(key, str)}
        attributes = {
            name: _by_name(value, names) for name, value in self._attributes() if _is_plain(_by_name(value, names))
        }
        own = {"groups": groups, "state": by_name, "other": other, "attributes": attributes}
        inner = {name: state.state(outside) for name, state in self._inner.items()}
        local: dict[str, Any] = tree_map_only(torch.Tensor, shards.local, {**own, "inner": inner})
        return local

    def obstacle(self, outside: dict[str, torch.Tensor]) -> str:
        """Returns why the saved parameters that are in no module cannot be restored; ``""`` if they can."""
        live = self._live()
        for name, tensor in outside.items():
            now = live.get(name)
            if now is not None and shards.local(now).shape != tensor.shape:
                shapes = f"is of shape {list(shards.local(now).shape)}, and was of shape {list(tensor.shape)}"
                return f"{name} of {self._name} {shapes}"
        return ""

    def restore(self, saved: dict[str, Any], outside: dict[str, torch.Tensor]) -> None:
        """Restores what existed: a group is found again by its parameters. Groups, parameters and options that have
        been added since stay as they are."""
        live = self._live()
        names = {id(parameter): name for name, parameter in live.items()}
        known = self._names_of()
        for name, tensor in outside.items():
            if name in live and id(live[name]) not in known:
                shards.local(live[name].detach()).copy_(tensor)
        for group in saved["groups"]:
            for now in self._optimizer.param_groups:
                if any(names[id(parameter)] in group["names"] for parameter in now["params"]):
                    _restore_options(now, group["options"])
                    break
        state = self._optimizer.state
        groups = {
            names[id(parameter)]: group for group in self._optimizer.param_groups for parameter in group["params"]
        }
        for name in _saved_names(saved) & live.keys():
            parameter = live[name]
            entry = saved["state"].get(name)
            if entry is None:
                state.pop(parameter, None)
                continue
            before = state.get(parameter, {})
            state[parameter] = {
                key: _restored(value, before.get(key), _device_of(key, parameter, groups[name]), parameter)
                for key, value in entry.items()
            }
        for key, value in saved["other"].items():
            state[key] = copy.deepcopy(value)
        for name, value in saved["attributes"].items():
            setattr(self._optimizer, name, _by_parameter(copy.deepcopy(value), live))
        for name, inner in self._inner.items():
            inner.restore(saved["inner"][name], {})

    def _live(self) -> dict[str, torch.Tensor]:
        """Returns the parameters by name; those that are in no module by their place."""
        known = self._names_of()
        return {
            known.get(id(parameter), f"{self._name}.param_groups[{g}]['params'][{i}]"): parameter
            for g, group in enumerate(self._optimizer.param_groups)
            for i, parameter in enumerate(group["params"])
        }

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self._optimizer).items():
            if name not in _STANDARD and not name.startswith(("_optimizer_", "_zero_grad")) and name not in self._inner:
                yield name, value


def _saved_names(saved: dict[str, Any]) -> set[str]:
    """Returns the names of the parameters in a saved state."""
    return {name for group in saved["groups"] for name in group["names"]}


def _is_plain(value: Any) -> bool:
    """Returns whether a value consists of numbers, texts and tensors that are not parameters."""
    return all(
        isinstance(leaf, _PLAIN) and not (isinstance(leaf, torch.Tensor) and leaf.requires_grad)
        for leaf in tree_leaves(value)
    )


_BY_PARAMETER = "by parameter"


def _by_name(value: Any, names: dict[int, str]) -> Any:
    """Returns a dict by parameter as one by name, and anything else as it is."""
    if isinstance(value, dict) and value and all(id(key) in names for key in value):
        return {_BY_PARAMETER: {names[id(key)]: held for key, held in value.items()}}
    return value


def _by_parameter(value: Any, live: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict) and value.keys() == {_BY_PARAMETER}:
        return {live[name]: held for name, held in value[_BY_PARAMETER].items() if name in live}
    return value


def _restore_options(group: dict[str, Any], options: dict[str, Any]) -> None:
    for option, value in options.items():
        now = group.get(option)
        if isinstance(now, torch.Tensor) and isinstance(value, torch.Tensor) and now.shape == value.shape:
            now.copy_(value)  # compiled code and schedulers refer to it
        else:
            group[option] = copy.deepcopy(value)


def _device_of(key: str, parameter: torch.Tensor, group: dict[str, Any]) -> torch.device:
    """Returns where an optimizer wants its state: a step count lies on the host, unless it is read on the device."""
    if key == "step" and not (group.get("capturable") or group.get("fused")):
        return torch.device("cpu")
    return parameter.device


def _restored(saved: Any, live: Any, device: torch.device, parameter: torch.Tensor) -> Any:
    """Returns a copy of saved state; of a distributed tensor, whose shard was saved, the distributed tensor."""
    if not isinstance(saved, torch.Tensor):
        return copy.deepcopy(saved)
    if isinstance(live, torch.Tensor) and shards.local(live).shape == saved.shape and live.dtype == saved.dtype:
        shards.local(live).copy_(saved)
        return live
    copied = saved.to(live.device if isinstance(live, torch.Tensor) else device, copy=True)
    if shards.is_sharded(parameter) and saved.dim() > 0 and saved.shape == shards.local(parameter).shape:
        return _as_sharded(copied, parameter)
    return copied


def _as_sharded(local: torch.Tensor, parameter: Any) -> torch.Tensor:
    distributed = sys.modules["torch.distributed.tensor"].DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return distributed  # type: ignore[no-any-return]
