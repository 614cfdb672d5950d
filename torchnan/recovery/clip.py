"""The norm that gradients are clipped to: lower, after an instability."""

from __future__ import annotations

import math
from typing import Any

from torchnan.recovery.step.norm_limit import NormLimit


class ClipThreshold:
    """What the policy says, until it is lowered.

    Args:
        norm_limit: knows the norms of the last good steps.
        most: the policy's ``max_norm``. ``None``: nothing is clipped.
        factor: by which it is lowered.

    Attributes:
        most: as it is now.
    """

    def __init__(self, norm_limit: NormLimit, most: float | None, factor: float) -> None:
        self._norm_limit = norm_limit
        self.most = most
        self._factor = factor

    def lower(self, norm: float) -> float | None:
        """From this step on. Where nothing has been clipped, the mean of the last good steps is lowered.

        Args:
            norm: of this step, for a run that has just begun.

        Returns:
            what it is now; ``None`` if there is nothing to be lowered.
        """
        usual = self._norm_limit.mean or (norm if math.isfinite(norm) and norm > 0 else None)
        now = usual if self.most is None else self.most
        if now is not None:
            self.most = self._factor * now
        return self.most

    def state_dict(self) -> dict[str, Any]:
        """What it is."""
        return {"most": self.most}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.most = state["most"]
