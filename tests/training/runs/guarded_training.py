"""The same trainings inside a step guard, which runs a bad step again: it names the origin, and tries float32."""

from __future__ import annotations

import math

import torchnan
from tests.training.runs.small_training import Setup, Training


class GuardedTraining(Training):
    """Ends after the first bad step. The guard counts steps from 1."""

    def __init__(self, setup: Setup, monitor: torchnan.Monitor) -> None:
        super().__init__(setup)
        self.at = 0
        self.guard = torchnan.StepGuard(
            self.model,
            self.optimizer,
            lambda model, batch: self.loss(batch, self.at),
            scaler=self.scaler,
            monitor=monitor,
            max_norm=setup.clip if math.isfinite(setup.clip) else None,
        )

    def run(self) -> None:
        for step in range(self.setup.steps):
            self.at = step
            if self.guard.step(self.prepare(self.at)).event is not None:
                return
