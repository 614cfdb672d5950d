"""Adapts the user's Monitor to the training loop of a framework."""

from __future__ import annotations

from typing import Any

from torchnan.detection.containment import Failures
from torchnan.training.guard.snapshots import TrainingState
from torchnan.training.guard.step_observer import StepMonitor, StepObserver
from torchnan.training.monitor import Monitor
from torchnan.training.monitor.guard_feed import StepDefaults


class FrameworkMonitor(StepMonitor):
    """A Monitor whose rows follow the conventions of a framework.

    Args:
        monitor: the user's Monitor.
        defaults: the framework's conventions.
    """

    def __init__(self, monitor: Monitor, defaults: StepDefaults) -> None:
        self._monitor = monitor
        self._defaults = defaults

    @property
    def finds_instabilities(self) -> bool:
        """Whether the Monitor diagnoses the run as it goes on."""
        return self._monitor.finds_instabilities

    def make_observer(self, training: TrainingState, failures: Failures) -> StepObserver:
        """Returns an observer that feeds the Monitor from one StepGuard."""
        return self._monitor.make_observer(training, failures, self._defaults)


def with_step_defaults(monitor: Any, defaults: StepDefaults) -> Any:
    """Returns a Monitor that follows a framework's conventions; anything else unchanged, for StepGuard to reject."""
    return FrameworkMonitor(monitor, defaults) if isinstance(monitor, Monitor) else monitor
