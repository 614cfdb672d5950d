"""Records how large the parameters of an optimizer were before its first step, for reports of an overflow.

They are scanned once for each optimizer, and never on devices.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch.optim.optimizer import Optimizer

from torchnan._load import _C
from torchnan.detection import shards


class _Noted(NamedTuple):
    optimizer: weakref.ref[Optimizer]
    step: int
    sizes: dict[int, float]  # by the id of the parameter


_known: dict[int, _Noted] = {}  # by the id of the optimizer, which need not be hashable


def are_noted(optimizer: Optimizer) -> bool:
    """Returns whether the parameters of an optimizer have been scanned."""
    return id(optimizer) in _known


def note(optimizer: Optimizer) -> None:
    """Scans the parameters of an optimizer before its first step in a session. Tries this only once."""
    session = _C.current_session()
    if session is None:
        return
    key, sizes = id(optimizer), dict[int, float]()
    _known[key] = _Noted(weakref.ref(optimizer, lambda _: _known.pop(key, None)), session.step, sizes)
    parameters = _parameters(optimizer)
    with torch._C.DisableTorchFunction():  # inspecting a tensor is not a call by user code
        found = _C.magnitudes([shards.local(parameter) for parameter in parameters])
    sizes.update({id(one): size for one, size in zip(parameters, found, strict=True) if size is not None})


def find(storage: int) -> tuple[float, int] | None:
    """Returns the largest ``|x|`` of the parameter with this storage before its first step, and the number of that
    step."""
    for noted in list(_known.values()):
        optimizer = noted.optimizer()
        for parameter in _parameters(optimizer) if optimizer is not None else ():
            if id(parameter) in noted.sizes and _C.storage_of(shards.local(parameter)) == storage:
                return noted.sizes[id(parameter)], noted.step
    return None


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
