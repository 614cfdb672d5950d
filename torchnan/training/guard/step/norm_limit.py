"""Limits on the gradient norm: absolute, and relative to recent good steps."""

from __future__ import annotations

import collections
from typing import Any

MIN_STEPS = 10  # a rolling mean over fewer norms is too noisy


class NormLimit:
    """Rejects a gradient norm above a limit, or above a multiple of the rolling mean over good steps.

    Args:
        limit: the largest accepted norm. Default ``None``: no limit.
        factor: the largest accepted multiple of the rolling mean. Default ``None``: no limit.
        window: number of steps in the rolling mean. ``factor`` applies once 10 norms have been recorded.
    """

    def __init__(self, limit: float | None = None, factor: float | None = None, window: int = 100) -> None:
        self.limit = limit
        self.factor = factor
        self._norms: collections.deque[float] = collections.deque(maxlen=window)

    @property
    def mean(self) -> float | None:
        """Mean norm of the last good steps, or ``None`` before the first."""
        return sum(self._norms) / len(self._norms) if self._norms else None

    def check(self, norm: float) -> str | None:
        """Returns why this norm is rejected, or ``None`` if it is accepted."""
        if self.limit is not None and norm > self.limit:
            return f"gradient norm {norm:.4g} is above the limit of {self.limit:.4g}"
        if self.factor is None or len(self._norms) < MIN_STEPS:
            return None
        mean = self.mean
        if mean and norm > self.factor * mean:
            return (
                f"gradient norm {norm:.4g} is {norm / mean:.3g} times the mean of the last {len(self._norms)} good "
                f"steps, {mean:.4g} (limit: {self.factor:.4g} times)"
            )
        return None

    def record(self, norm: float) -> None:
        """Records the norm of a good step."""
        self._norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """Returns the norms of the rolling mean."""
        return {"norms": list(self._norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self._norms.clear()
        self._norms.extend(state["norms"])
