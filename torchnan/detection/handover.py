"""Passes tensors to another process, such as from a worker of a ``DataLoader``.

The records about their values go with them, so that a report in the other process names the line that made them here.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection.containment import contained

Reduced = tuple[Any, ...]  # a function and its arguments, in the form that pickle needs
Cause = tuple[int, int, str]  # where the value came from, the bits of its kinds, a finding as JSON


def install() -> Callable[[], None]:
    """Makes tensors carry their records; the returned function ends that."""
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    replaced = {kind: reducers[kind] for kind in (torch.Tensor, torch.nn.Parameter) if kind in reducers}
    ours = {kind: _telling(reduce) for kind, reduce in replaced.items()}
    reducers.update(ours)

    def undo() -> None:
        for kind, reduce in replaced.items():
            if reducers.get(kind) is ours[kind]:
                reducers[kind] = reduce

    return undo


def _telling(reduce: Callable[[torch.Tensor], Reduced]) -> Callable[[torch.Tensor], Reduced]:
    @functools.wraps(reduce)
    def telling(tensor: torch.Tensor) -> Reduced:
        causes: list[Cause] = []
        if _C.has_nonfinite():
            with contained("describing a value for another process"):
                causes = _C.causes_for_others(tensor, _name_of_process())
        reduced = reduce(tensor)
        return (rebuild, (causes, *reduced)) if causes else reduced

    return telling


def rebuild(causes: Sequence[Cause], function: Callable[..., torch.Tensor], args: Sequence[Any]) -> torch.Tensor:
    """Makes the tensor in the receiving process."""
    tensor = function(*args)
    with contained("recording a value from another process"):
        _C.receive_causes(tensor, causes)
    return tensor


def _name_of_process() -> str:
    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    return multiprocessing.current_process().name if worker is None else f"DataLoader worker {worker.id}"
