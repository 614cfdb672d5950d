"""Recovers training from bad steps: skips, retries, rolls back or stops, and logs each action."""

from torchnan.config.policy import Policy
from torchnan.training.guard.errors import EXIT_CODES, TrainingStopped, exit_codes
from torchnan.training.guard.event import StepEvent

__all__ = ["EXIT_CODES", "Policy", "StepEvent", "TrainingStopped", "exit_codes"]
