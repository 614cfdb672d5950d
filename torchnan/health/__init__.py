"""Health of the ranks of a job and of their devices, whatever the values of the program.

``torchnan.health.check()`` answers, within a bounded time, which rank is gone, hangs, computes wrong or sends wrong
values. A StepGuard asks before it rolls back: to go on from a snapshot is of no use on a device that corrupts the next
step too.
"""

from torchnan.health.check import check as check
from torchnan.health.report import HealthReport as HealthReport
from torchnan.health.report import Trouble as Trouble

__all__ = ["HealthReport", "Trouble", "check"]
