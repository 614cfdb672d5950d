"""Remedies for a step that is not finite, tried on it."""

from torchnan.recovery.remedies.function import try_remedies
from torchnan.recovery.remedies.trials import Trial, Trials

__all__ = ["Trial", "Trials", "try_remedies"]
