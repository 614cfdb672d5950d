"""Averages gradients over the ranks, for a model that is kept from doing so in its backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement


def average(parameters: Sequence[tuple[str, torch.Tensor]], agreement: Agreement) -> None:
    """Replaces each gradient by its mean over the ranks. Collective.

    If a parameter has a gradient on some ranks only, zeros count for the others; if on none, it stays without one.
    """
    with detection_paused(), torch.no_grad():
        trained = [p for _, p in parameters if p.requires_grad]
        used = agreement.all_reduce_max_of([int(p.grad is not None) for p in trained])
        trained = [p for p, anywhere in zip(trained, used, strict=True) if anywhere]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in trained if p.grad is not None]
        for kind in {(g.dtype, g.device) for g in gradients}:
            _average_flat([g for g in gradients if (g.dtype, g.device) == kind], agreement)


def _average_flat(gradients: list[torch.Tensor], agreement: Agreement) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=agreement.group)
    sizes = [gradient.numel() for gradient in gradients]
    pieces = (flat / agreement.ranks).split(sizes)  # type: ignore[no-untyped-call]
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))
