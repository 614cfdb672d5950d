"""Measures weight norms and the relative size of updates, every few steps and from a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchnan.detection import shards
from torchnan.detection.pause import detection_paused

GroupValues = dict[str, Sequence[float | torch.Tensor]]

SAMPLE_SIZE = 1024  # elements of each parameter


class WeightStatistics:
    """Measures the weights of each parameter group every few steps, without waiting for a device.

    The norm reads all weights. The update ratio compares a sample of up to 1,024 elements of each parameter, evenly
    spread, with the same sample one step before.

    Args:
        every: steps between two measurements. 0: never.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps = 0
        self._before: list[torch.Tensor] = []

    def measure(self, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> GroupValues:
        """Measures at the first step and at every ``every``-th after it; ratios from the second measurement on.

        Args:
            model, optimizer: groups are the optimizer's; without one, the model is one group.

        Returns:
            ``"weight_norm"`` and ``"update_ratio"`` with a tensor for each group, where they were measured.
        """
        due = self._every > 0 and self._steps % self._every == 0
        due_next = self._every > 0 and (self._steps + 1) % self._every == 0
        self._steps += 1
        groups = parameters_by_group(model, optimizer) if due or due_next else []
        found: GroupValues = {}
        if not groups or not all(groups):
            return found
        with detection_paused(), torch.no_grad():
            local = [[shards.local(p.detach()) for p in group] for group in groups]
            before, self._before = self._before, [_sample(group) for group in local] if due_next else []
            if due:
                found["weight_norm"] = [_norm(group) for group in local]
                after = self._before or [_sample(group) for group in local]
                if [a.shape for a in after] == [b.shape for b in before]:
                    found["update_ratio"] = [_ratio(b, a) for b, a in zip(before, after, strict=True)]
        return found


def _norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns the 2-norm of all tensors together, in float32 at least, on the device of the first."""
    wide = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    norms: list[torch.Tensor] = []
    for kind in {(t.device, t.dtype) for t in tensors}:
        alike = [t for t in tensors if (t.device, t.dtype) == kind]
        norms += torch._foreach_norm(alike, 2, dtype=wide)
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(tensors[0].device) for norm in norms]))
    return whole


def _sample(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns sampled elements as one vector, scaled so that each parameter counts by its size."""
    pieces, scales = [], []
    for tensor in tensors:
        elements = tensor.numel()
        stride = max(1, elements // SAMPLE_SIZE) | 1  # odd: does not stay in one column of the usual widths
        piece = tensor.reshape(-1)[::stride].to(tensors[0].device, torch.float32)
        pieces.append(piece)
        scales.append((elements / max(1, piece.numel())) ** 0.5)
    return torch.cat(torch._foreach_mul(pieces, scales))


def _ratio(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(before).clamp(min=torch.finfo(before.dtype).tiny)
    ratio: torch.Tensor = torch.linalg.vector_norm(after - before) / norm
    return ratio


def parameters_by_group(
    model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None
) -> list[list[torch.Tensor]]:
    """Returns the parameters of each of the optimizer's groups; without one, the model's as one group."""
    if optimizer is not None:
        return [[p for p in group["params"] if _can_be_measured(p)] for group in optimizer.param_groups]
    return [] if model is None else [[p for p in model.parameters() if _can_be_measured(p)]]


def _can_be_measured(parameter: torch.Tensor) -> bool:
    return parameter.is_floating_point() and parameter.layout == torch.strided and parameter.device.type != "meta"


def group_count(model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> int:
    """Returns the number of measured groups."""
    return len(optimizer.param_groups) if optimizer is not None else int(model is not None)


def group_names(model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> list[str]:
    """Returns a name for each measured group: ``"0: decay"``, ``"1: weight_decay=0.1"`` or ``"0"``.

    The name says what distinguishes the group from the optimizer's other groups.
    """
    if optimizer is None:
        return [] if model is None else ["model"]
    decays = {group.get("weight_decay") for group in optimizer.param_groups}

    def name(i: int, group: Mapping[str, Any]) -> str:
        if "name" in group:
            return f"{i}: {group['name']}"
        return f"{i}: weight_decay={group['weight_decay']:g}" if len(decays) > 1 else str(i)

    return [name(i, group) for i, group in enumerate(optimizer.param_groups)]
