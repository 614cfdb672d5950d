"""Checks the health of the ranks of a job and of their devices, whatever the values of the program.

``torchnan.health.check()`` finds out, within a bounded time, which rank is gone, hangs, computes wrong or sends wrong
values. A StepGuard calls it before it rolls back: resuming is pointless if the device corrupts the next step as well.
"""

from torchnan.training.health.check import check as check
from torchnan.training.health.report import HealthReport as HealthReport
from torchnan.training.health.report import Trouble as Trouble

__all__ = ["HealthReport", "Trouble", "check"]
