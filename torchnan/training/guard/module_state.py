"""The state of a module for a snapshot: parameters, buffers and extra state."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchnan.detection import shards


class ModuleState:
    """Saves and restores one module.

    Args:
        module: the module.
        prefix: before the names of its tensors, where they are told: ``"ema."``.
    """

    def __init__(self, module: nn.Module, prefix: str = "") -> None:
        self.module = module
        self.prefix = prefix

    def state(self) -> dict[str, Any]:
        """Returns the live state: the tensors themselves, and of distributed ones this rank's shards. A buffer that is
        registered as ``None`` is saved as such."""
        buffers: dict[str, torch.Tensor | None] = dict.fromkeys(_empty_buffers(self.module))
        buffers |= {name: shards.local(t.detach()) for name, t in self.module.named_buffers()}
        return {
            "parameters": {name: shards.local(p.detach()) for name, p in self.module.named_parameters()},
            "buffers": buffers,
            "extra": {name: module.get_extra_state() for name, module in _with_extra_state(self.module)},
        }

    def obstacle(self, saved: dict[str, Any]) -> str:
        """Returns why a saved state cannot be restored; ``""`` if it can."""
        live = dict(self.module.named_parameters())
        for name, tensor in saved["parameters"].items():
            now = live.get(name)
            if now is None or shards.local(now).shape != tensor.shape:
                shape = "gone" if now is None else f"of shape {list(shards.local(now).shape)}"
                return f"parameter {self.prefix}{name} is {shape}, and was of shape {list(tensor.shape)}"
        modules = dict(self.module.named_modules())
        held = dict(self.module.named_buffers())
        for name, tensor in saved["buffers"].items():
            if tensor is not None and not _are_alike(tensor, held.get(name)) and name.rpartition(".")[0] not in modules:
                return f"the module of buffer {self.prefix}{name} is gone"
        return next((f"module {self.prefix}{name} is gone" for name in saved["extra"] if name not in modules), "")

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores what existed, and leaves what has been added since. Shares no memory with ``saved`` afterwards."""
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        modules = dict(self.module.named_modules())
        for name, tensor in saved["parameters"].items():
            shards.local(parameters[name].detach()).copy_(tensor)
        for name, tensor in saved["buffers"].items():
            live = buffers.get(name)
            if tensor is not None and live is not None and _are_alike(tensor, live):
                shards.local(live.detach()).copy_(tensor)
            elif tensor is not None or live is not None:
                of_module, _, leaf = name.rpartition(".")
                device = live.device if live is not None else _device_of(self.module)
                modules[of_module]._buffers[leaf] = None if tensor is None else tensor.to(device, copy=True)
        for name, extra in saved["extra"].items():
            modules[name].set_extra_state(copy.deepcopy(extra))


def _with_extra_state(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            yield name, part


def _empty_buffers(module: nn.Module) -> Iterator[str]:
    """Returns the names of buffers that are registered as ``None``, which ``named_buffers()`` leaves out."""
    for name, part in module.named_modules():
        for leaf, buffer in part._buffers.items():
            if buffer is None:
                yield f"{name}.{leaf}" if name else leaf


def _are_alike(saved: torch.Tensor, live: torch.Tensor | None) -> bool:
    return live is not None and shards.local(live).shape == saved.shape and live.dtype == saved.dtype


def _device_of(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
