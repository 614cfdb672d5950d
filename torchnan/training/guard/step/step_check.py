"""Checks losses and gradients for anomalies, and agrees with the other ranks on the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.step.gradients import GradientStats, describe_nonfinite
from torchnan.training.guard.step.norm_limit import NormLimit


class StepCheck:
    """Decides whether losses and gradients are good, the same on every rank.

    Args:
        agreement: agreement with the other ranks.
        norm_limit: limits on the gradient norm.
    """

    def __init__(self, agreement: Agreement, norm_limit: NormLimit) -> None:
        self._agreement = agreement
        self._norm_limit = norm_limit

    def loss_anomaly(self, values: Sequence[float | complex]) -> Anomaly | None:
        """Returns the anomaly of the first non-finite loss on this rank, or ``None``.

        Args:
            values: the losses of the micro-batches.
        """
        for i, value in enumerate(values):
            if not math.isfinite(abs(value)):
                return Anomaly(AnomalyKind.LOSS, f"loss is {value}", i, self._agreement.global_rank)
        return None

    def gradient_anomaly(
        self,
        gradients: Sequence[tuple[str, torch.Tensor]],
        nonfinite: Sequence[str],
        *,
        prefix: str,
        kind: AnomalyKind = AnomalyKind.GRADIENT,
    ) -> Anomaly | None:
        """Returns the anomaly of the non-finite gradients on this rank, or ``None`` if there are none.

        Args:
            gradients: all gradients, by name.
            nonfinite: names of the non-finite ones.
            prefix: text before their description.
            kind: the kind of the anomaly.
        """
        if not nonfinite:
            return None
        text = f"{prefix}{describe_nonfinite(gradients, nonfinite)}"
        return Anomaly(kind, text, 0, self._agreement.global_rank)

    def agree(self, stats: GradientStats, anomaly: Anomaly | None) -> tuple[Anomaly | None, float]:
        """Returns the worst anomaly of any rank, which may be the norm itself, and the gradient norm. Collective."""
        return self._agreement.agree_with_norm(stats, anomaly, self._norm_limit.check)
