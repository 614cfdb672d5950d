"""The interfaces between a StepGuard and the object given as ``monitor=``; implemented elsewhere."""

from __future__ import annotations

import dataclasses

import torch

from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Anomaly
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.snapshots import TrainingState
from torchnan.training.guard.step.forward_backward import StepRun


@dataclasses.dataclass(frozen=True)
class ObservedInstability:
    """An instability of the run that an observer has just found.

    Attributes:
        kind: its kind, possibly a key of the policy's ``instability`` table.
        text: a description in one line.
    """

    kind: str
    text: str


class StepObserver:
    """Follows the steps of one StepGuard. This one does nothing; implementations override the methods that they
    need."""

    @property
    def wants_float32_rerun(self) -> bool:
        """Whether a bad step is to be run once more in float32."""
        return False

    def begin_step(self, step: int) -> None:
        """Is called when a step begins."""

    def add_batch(self, batch: object) -> None:
        """Is called with each micro-batch, before the step may mutate it."""

    def add_loss(self, loss: torch.Tensor) -> None:
        """Is called with each loss, before its backward pass where the guard runs the step."""

    def add_run(self, run: StepRun, norm: float, anomaly: Anomaly | None, lr_factor: float) -> None:
        """Is called when the step has been run.

        Args:
            run: its losses and gradient statistics.
            norm: the gradient norm, the same on every rank.
            anomaly: the worst anomaly of any rank, or ``None``.
            lr_factor: what recovery multiplies the learning rates with.
        """

    def add_bad_step(self, event: StepEvent) -> None:
        """Is called when a bad step has been analyzed."""

    def new_instabilities(self) -> list[ObservedInstability]:
        """Returns the instabilities that the step has shown on this rank."""
        return []

    def end_step(self, *, skipped: bool) -> None:
        """Is called when it is known whether the step is applied."""


class StepMonitor:
    """Base class of the object for ``StepGuard(monitor=...)``."""

    @property
    def finds_instabilities(self) -> bool:
        """Whether its observers look for instabilities of the run."""
        return False

    def make_observer(self, training: TrainingState, failures: Failures) -> StepObserver:
        """Returns an observer for one StepGuard.

        Args:
            training: the model, the optimizer and the scaler of the guard.
            failures: counts what the observer could not do.
        """
        return StepObserver()
