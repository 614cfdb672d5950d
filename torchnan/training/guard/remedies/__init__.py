"""Remedies for a step that is not finite, tried on it."""

from torchnan.training.guard.remedies.function import try_remedies
from torchnan.training.guard.remedies.trials import Trial, Trials

__all__ = ["Trial", "Trials", "try_remedies"]
