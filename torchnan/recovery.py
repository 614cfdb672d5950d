"""Public names of the step guard: its policy, its events and its exit codes."""

from torchnan.training.guard import EXIT_CODES, Policy, StepEvent, TrainingStopped, exit_codes

__all__ = ["EXIT_CODES", "Policy", "StepEvent", "TrainingStopped", "exit_codes"]
