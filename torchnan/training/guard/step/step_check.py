"""Checks losses, gradients and buffers for anomalies on this rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.step.gradients import describe_nonfinite


class StepCheck:
    """Decides whether losses, gradients and buffers are good on this rank.

    Args:
        agreement: knows this rank.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement

    def loss_anomaly(self, values: Sequence[float | complex]) -> Anomaly | None:
        """Returns the anomaly of the first non-finite loss on this rank, or ``None``.

        Args:
            values: the losses of the micro-batches.
        """
        for i, value in enumerate(values):
            if not math.isfinite(abs(value)):
                return Anomaly(AnomalyKind.LOSS, f"loss is {value}", i, self._agreement.global_rank)
        return None

    def tensor_anomaly(
        self,
        tensors: Sequence[tuple[str, torch.Tensor]],
        nonfinite: Sequence[str],
        *,
        prefix: str,
        kind: AnomalyKind = AnomalyKind.GRADIENT,
    ) -> Anomaly | None:
        """Returns the anomaly of the non-finite gradients or buffers on this rank, or ``None`` if there are none.

        Args:
            tensors: all of them, by name.
            nonfinite: names of the non-finite ones.
            prefix: text before their description.
            kind: the kind of the anomaly.
        """
        if not nonfinite:
            return None
        text = f"{prefix}{describe_nonfinite(tensors, nonfinite)}"
        return Anomaly(kind, text, 0, self._agreement.global_rank)
