"""What a training run does about a bad step: skip, retry, roll back, stop; and what it writes down of it."""

from torchnan.recovery.errors import EXIT_CODES, TrainingStopped, exit_codes
from torchnan.recovery.event import StepEvent
from torchnan.recovery.policy import Policy

__all__ = ["EXIT_CODES", "Policy", "StepEvent", "TrainingStopped", "exit_codes"]
