"""Says what is wrong with the losses, gradients and buffers of this rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.step.gradients import describe_nonfinite


def loss_anomaly(values: Sequence[float | complex], agreement: Agreement) -> Anomaly | None:
    """Returns the anomaly of the first non-finite loss of the micro-batches, or ``None``."""
    for i, value in enumerate(values):
        if not math.isfinite(abs(value)):
            return Anomaly(AnomalyKind.LOSS, f"loss is {value}", i, agreement.global_rank)
    return None


def tensor_anomaly(
    tensors: Sequence[tuple[str, torch.Tensor]],
    nonfinite: Sequence[str],
    agreement: Agreement,
    *,
    prefix: str,
    kind: AnomalyKind = AnomalyKind.GRADIENT,
) -> Anomaly | None:
    """Returns the anomaly of the non-finite gradients or buffers, or ``None`` if there are none.

    Args:
        tensors: all of them, by name.
        nonfinite: names of the non-finite ones.
        agreement: knows this rank.
        prefix: text before their description.
        kind: the kind of the anomaly.
    """
    if not nonfinite:
        return None
    return Anomaly(kind, f"{prefix}{describe_nonfinite(tensors, nonfinite)}", 0, agreement.global_rank)
