"""Checks the health of the ranks of a job and of their devices: ``torchnan.health.check()``."""

from torchnan.training.health import HealthReport, Trouble, check

__all__ = ["HealthReport", "Trouble", "check"]
