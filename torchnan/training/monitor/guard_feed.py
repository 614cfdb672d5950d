"""Feeds a Monitor from a StepGuard, which already has loss, gradient norm and batch, and decides about the step."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import torch

from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Anomaly, AnomalyKind
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.snapshots import TrainingState
from torchnan.training.guard.step.forward_backward import StepRun
from torchnan.training.guard.step_observer import ObservedInstability, StepObserver
from torchnan.training.monitor import compute_dtype
from torchnan.training.monitor.headroom import ModuleHeadroom
from torchnan.training.monitor.options import MonitorOptions
from torchnan.training.monitor.pending_row import PendingRow, current_loss_scale, learning_rates
from torchnan.training.monitor.row import Row
from torchnan.training.monitor.row_writer import RowWriter
from torchnan.training.monitor.weights import WeightStatistics, group_count
from torchnan.training.storage.jsonl import sanitize_text


@dataclasses.dataclass(frozen=True)
class StepDefaults:
    """How a framework's training loop differs from a StepGuard's own steps.

    Attributes:
        batch_of: returns the data in a micro-batch as the guard saves it.
        loss_of: returns the loss of the step, given the mean over the micro-batches' losses and their number.
        norm_of: returns the gradient norm before clipping, given the norm that the guard has measured.
        dtype: the dtype that the model computes in, if that is known.
    """

    batch_of: Callable[[Any], Any] = lambda batch: batch
    loss_of: Callable[[float, int], float] = lambda mean, parts: mean
    norm_of: Callable[[float], float] = lambda norm: norm
    dtype: str | None = None


class MonitorFeed(StepObserver):
    """Writes a row of a Monitor for each step of a StepGuard.

    Weights are measured before the step, and the update ratio is that of the previous update: a row is complete
    before the optimizer steps.

    Args:
        writer: writes the rows, and diagnoses the run.
        weights, headroom: measure the model.
        options: options of the Monitor.
        training: model, optimizer and scaler.
        failures: counts what could not be done.
        defaults: how the training loop differs from the guard's own steps.
    """

    def __init__(
        self,
        writer: RowWriter,
        weights: WeightStatistics,
        headroom: ModuleHeadroom,
        options: MonitorOptions,
        training: TrainingState,
        failures: Failures,
        defaults: StepDefaults,
    ) -> None:
        self._writer = writer
        self._weights = weights
        self._headroom = headroom
        self._options = options
        self._model = training.model
        self._optimizer: Any = training.parts["optimizer"]
        self._scaler: Any = training.parts.get("scaler")
        self._failures = failures
        self._defaults = defaults
        self._has_begun = False
        self._compute_dtype: str | None = None
        self._pending_row: PendingRow | None = None
        self._row: Row | None = None

    @property
    def wants_float32_rerun(self) -> bool:
        """Whether a bad step is to be run once more in float32."""
        return self._options.rerun_in_fp32 and self._writer.dtype in ("float16", "bfloat16")

    def begin_step(self, step: int) -> None:
        """Begins a row, and measures loss scale, weights and headroom."""
        self._row, self._pending_row = None, None
        with self._failures.contained("the monitor"):
            row = Row(step)
            row.headroom = self._headroom.measure()
            self._pending_row = PendingRow(row)
            weights = self._weights.measure(self._model, self._optimizer)
            self._pending_row.add({"loss_scale": current_loss_scale(self._scaler)}, weights)

    def add_batch(self, batch: object) -> None:
        """Adds a micro-batch to the digest, before the step may mutate it."""
        if self._pending_row is not None:
            with self._failures.contained("the digest of a batch"):
                self._pending_row.add_batch(self._defaults.batch_of(batch))

    def add_loss(self, loss: torch.Tensor) -> None:
        """Finds the dtype that the model computes in, from the graph of the first loss."""
        if self._compute_dtype is None:
            with self._failures.contained("reading the graph of the loss"):
                self._compute_dtype = compute_dtype.infer_from_loss(loss)

    def add_run(self, run: StepRun, norm: float, anomaly: Anomaly | None, lr_factor: float) -> None:
        """Completes the row with learning rates, loss and gradient norm."""
        with self._failures.contained("the monitor"):
            self._complete_row(run, norm, anomaly, lr_factor)

    def _complete_row(self, run: StepRun, norm: float, anomaly: Anomaly | None, lr_factor: float) -> None:
        if self._pending_row is None:
            return
        if not self._has_begun or len(self._writer.groups or ()) != group_count(self._model, self._optimizer):
            self._writer.begin_run(
                self._model, self._optimizer, self._scaler, self._compute_dtype or self._defaults.dtype
            )
            self._has_begun = True
        rates = [rate * lr_factor for rate in learning_rates(self._optimizer)]
        self._pending_row.add({}, {"lr": rates})
        row = self._row = self._pending_row.finish()
        if anomaly is None or anomaly.kind is not AnomalyKind.OUT_OF_MEMORY:
            losses = [value.real for value in run.loss_values]
            row.loss = self._defaults.loss_of(statistics.fmean(losses), len(losses)) if losses else None
            row.grad_norm = self._defaults.norm_of(norm)

    def add_bad_step(self, event: StepEvent) -> None:
        """Records the origin of a bad step, and the result of its rerun in float32."""
        from torchnan.training.monitor import format

        with self._failures.contained("the monitor"):
            if event.finding is not None:
                self._writer.record_finding(event.step, format.finding_summary(event.finding))
            elif event.origin:
                self._writer.record_finding(event.step, {"text": sanitize_text(event.origin), "rank": event.rank})
            if event.action == "rollback":
                self._writer.record_action(event.step, event.action)
            if event.finite_in_float32 is not None:
                self._writer.record_rerun(event.step, "float32", event.finite_in_float32)

    def new_instabilities(self) -> list[ObservedInstability]:
        """Diagnoses the run with the row of the step. Returns the verdicts that have become true."""
        if self._row is None:
            return []
        new = self._writer.diagnose(self._row)
        self._writer.report(self._row.step, new)
        return [
            ObservedInstability(verdict.kind, f"{verdict.kind} ({verdict.cause}): {verdict.branch}")
            for verdict in (new.verdicts if new is not None else ())
        ]

    def end_step(self, *, skipped: bool) -> None:
        """Writes the row."""
        row, self._row, self._pending_row = self._row, None, None
        if row is not None:
            with self._failures.contained("the monitor"):
                row.skipped = skipped
                self._writer.write(row)
