"""Recovers training from bad steps: skips, retries, rolls back or stops, and logs each action."""

from torchnan.recovery.errors import EXIT_CODES, TrainingStopped, exit_codes
from torchnan.recovery.event import StepEvent
from torchnan.recovery.policy import Policy

__all__ = ["EXIT_CODES", "Policy", "StepEvent", "TrainingStopped", "exit_codes"]
