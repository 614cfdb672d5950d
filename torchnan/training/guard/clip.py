"""The norm that gradients are clipped to, which an instability may lower."""

from __future__ import annotations

import math
from typing import Any

from torchnan.training.guard.step.norm_limit import NormLimit


class ClipThreshold:
    """The policy's ``max_norm``, until it is lowered.

    Args:
        norm_limit: has the mean norm of the last good steps.
        max_norm: the policy's ``max_norm``. ``None``: gradients are not clipped.
        factor: multiplies the threshold when it is lowered.

    Attributes:
        max_norm: the current threshold.
    """

    def __init__(self, norm_limit: NormLimit, max_norm: float | None, factor: float) -> None:
        self._norm_limit = norm_limit
        self.max_norm = max_norm
        self._factor = factor

    def lower(self, norm: float) -> float | None:
        """Lowers the threshold from this step on; without one, starts from the mean norm of the last good steps.

        Args:
            norm: norm of this step, used where there is no mean yet.

        Returns:
            The new threshold; ``None`` if there is no norm to start from.
        """
        usual = self._norm_limit.mean or (norm if math.isfinite(norm) and norm > 0 else None)
        current = usual if self.max_norm is None else self.max_norm
        if current is not None:
            self.max_norm = self._factor * current
        return self.max_norm

    def state_dict(self) -> dict[str, Any]:
        """Returns the current threshold."""
        return {"most": self.max_norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self.max_norm = state["most"]
