"""A gradient norm that is finite, and yet wrong."""

from __future__ import annotations

import collections
from typing import Any

MIN_STEPS = 10  # norms; a mean of fewer says too little


class NormLimit:
    """Trips on a norm above a limit, or above a multiple of the rolling mean of the steps that were good.

    Args:
        limit: largest norm that is let pass. Default ``None``: any.
        factor: largest multiple of the rolling mean. Default ``None``: any.
        window: steps in the rolling mean. Until 10 of them have been seen, ``factor`` is not applied.
    """

    def __init__(self, limit: float | None = None, factor: float | None = None, window: int = 100) -> None:
        self.limit = limit
        self.factor = factor
        self._norms: collections.deque[float] = collections.deque(maxlen=window)

    @property
    def mean(self) -> float | None:
        """Of the last good steps; ``None`` before the first."""
        return sum(self._norms) / len(self._norms) if self._norms else None

    def check(self, norm: float) -> str | None:
        """What is wrong with this norm, ``None`` if nothing is."""
        if self.limit is not None and norm > self.limit:
            return f"gradient norm {norm:.4g} is above the limit of {self.limit:.4g}"
        mean = self.mean
        if self.factor is not None and mean and len(self._norms) >= MIN_STEPS and norm > self.factor * mean:
            return (
                f"gradient norm {norm:.4g} is {norm / mean:.3g} times the mean of the last {len(self._norms)} good "
                f"steps, {mean:.4g} (limit: {self.factor:.4g} times)"
            )
        return None

    def note(self, norm: float) -> None:
        """A good step had this norm."""
        self._norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """The norms that the mean is of."""
        return {"norms": list(self._norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self._norms.clear()
        self._norms.extend(state["norms"])
