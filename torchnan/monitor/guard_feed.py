"""A Monitor inside a StepGuard, which knows loss, gradient norm, batch and what becomes of the step without another
look."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.monitor import compute_dtype
from torchnan.monitor.monitor import Monitor, current_loss_scale, learning_rates
from torchnan.monitor.pending_row import PendingRow
from torchnan.monitor.row import Row
from torchnan.monitor.weights import group_names
from torchnan.recovery.clip import ClipThreshold
from torchnan.recovery.event import INSTABILITY_ACTIONS, MITIGATIONS, Action, StepEvent
from torchnan.recovery.learning_rate import LearningRateCut
from torchnan.recovery.policy import Policy
from torchnan.recovery.snapshots import TrainingState
from torchnan.recovery.step.forward_backward import StepRun
from torchnan.storage.jsonl import sanitize_text


@dataclasses.dataclass(frozen=True)
class StepDefaults:
    """What a framework's loop does in its own way.

    Attributes:
        batch_of: of what the guard keeps of a micro-batch, the data.
        loss_of: of the mean over the losses of the micro-batches and their number, the loss of the step.
        norm_of: of the norm that the guard has found, the one before clipping.
        dtype: what the model computes in, if that is known.
    """

    batch_of: Callable[[Any], Any] = lambda batch: batch
    loss_of: Callable[[float, int], float] = lambda mean, parts: mean
    norm_of: Callable[[float], float] = lambda norm: norm
    dtype: str | None = None


class MonitorFeed:
    """Feeds the Monitor, and says what the policy's table for instabilities has for what it finds.

    Weights are measured before the step, and the update ratio is that of the update before it: all of a row is known
    before the optimizer steps.

    Args:
        monitor: ``None``, or one that leaves it to another rank: of this process there are no rows.
        training: model, optimizer and scaler.
        policy: has the table.
        agreement: with the other ranks, which have the same table.
        rate, clip: are cut and lowered.
        tell: told of that.
        failures: told of what could not be done.

    Attributes:
        habits: of the loop that the guard is in.
    """

    def __init__(
        self,
        monitor: Monitor | None,
        training: TrainingState,
        policy: Policy,
        agreement: Agreement,
        rate: LearningRateCut,
        clip: ClipThreshold,
        tell: Callable[[StepEvent], None],
        failures: Failures,
    ) -> None:
        self._monitor = None if monitor is None or monitor.is_off else monitor
        self._model = training.model
        self._optimizer: Any = training.parts["optimizer"]
        self._scaler: Any = training.parts.get("scaler")
        self._table = policy.instability
        self._agreement = agreement
        self._lr_cut, self._clip = rate, clip
        self._tell = tell
        self._failures = failures
        self.habits = StepDefaults()
        self._begun = False
        self._regime: str | None = None
        self._step = 0
        self._draft: PendingRow | None = None
        self._row: Row | None = None
        self._hard: Action | None = None  # what the table has for the step that is being dealt with

    def wants_float32(self) -> bool:
        """Whether a bad step is to be run in float32, too."""
        if self._monitor is None or not self._monitor.options.rerun_in_fp32:
            return False
        return self._monitor.dtype in ("float16", "bfloat16")

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step, self._row, self._draft = step, None, None
        if self._monitor is not None:
            with self._failures.contained("the monitor"):
                row = Row(step)
                row.headroom = self._monitor.headroom.measure()
                self._draft = PendingRow(row)
                weights = self._monitor.weights.measure(self._model, self._optimizer)
                self._draft.add({"loss_scale": current_loss_scale(self._scaler)}, weights)

    def keep(self, batch: Any) -> None:
        """One of its micro-batches, before the step may write to it."""
        if self._draft is not None:
            with self._failures.contained("the digest of a batch"):
                self._draft.add_batch(self.habits.batch_of(batch))

    def without_graph(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss, detached; of the first the graph is looked at, which tells what the model computes in."""
        if self._monitor is not None and self._regime is None:
            with self._failures.contained("looking at the graph of the loss"):
                self._regime = compute_dtype.infer_from_loss(loss)
        return loss.detach()

    def look(self, run: StepRun, norm: float, worst: Anomaly | None) -> Anomaly | None:
        """The step has been run.

        Args:
            worst: what is wrong with it, the same on every rank.

        Returns:
            the same; or the instability that the table has an answer to, if nothing else is wrong.
        """
        self._hard = None
        with self._failures.contained("the monitor"):
            self._fill_in(run, norm, worst)
        if worst is not None and worst.kind is not AnomalyKind.SCALER:
            return worst
        text, rank = self._judge(norm)
        return worst if self._hard is None else Anomaly(AnomalyKind.INSTABILITY, text, 0, rank)

    def after_replay(self, event: StepEvent) -> Action | None:
        """A bad step has been run again. Returns what the table has for it, if anything."""
        if event.what == AnomalyKind.INSTABILITY.label:
            return self._hard
        if self._monitor is not None:
            with self._failures.contained("the monitor"):
                self._note(self._monitor, event)
        self._judge(event.norm if event.norm is not None else math.nan)
        return self._hard

    def end(self, *, skipped: bool) -> None:
        """What has become of the step."""
        row, self._row, self._draft = self._row, None, None
        if row is not None and self._monitor is not None:
            with self._failures.contained("the monitor"):
                row.skipped = skipped
                self._monitor.record.write(row)

    def _fill_in(self, run: StepRun, norm: float, worst: Anomaly | None) -> None:
        if self._draft is None or self._monitor is None:
            return
        record = self._monitor.record
        if not self._begun or len(record.groups or ()) != len(group_names(self._model, self._optimizer)):
            record.begin_run(self._model, self._optimizer, self._scaler, self._regime or self.habits.dtype)
            self._begun = True
        rates = [rate * self._lr_cut.factor for rate in learning_rates(self._optimizer)]
        self._draft.add({}, {"lr": rates})
        row = self._row = self._draft.finish()
        if worst is None or worst.kind is not AnomalyKind.OUT_OF_MEMORY:
            losses = [value.real for value in run.values]
            row.loss = self.habits.loss_of(statistics.fmean(losses), len(losses)) if losses else None
            row.grad_norm = self.habits.norm_of(norm)

    def _judge(self, norm: float) -> tuple[str, int]:
        """What becomes true with the row, on every rank; carries out what needs no other step. Returns what is to be
        said of the rest, and whose it is."""
        wanted, text = 0, ""
        if self._monitor is not None and self._row is not None:
            record = self._monitor.record
            news = record.diagnose(self._row)
            record.report(self._row.step, news)
            for verdict in news.verdicts if news is not None else ():
                answer = self._table.get(verdict.kind)
                if answer is not None and INSTABILITY_ACTIONS.index(answer) + 1 > wanted:
                    wanted, text = (
                        INSTABILITY_ACTIONS.index(answer) + 1,
                        f"{verdict.kind} ({verdict.cause}): {verdict.branch}",
                    )
        gravest = self._agreement.all_reduce_max(wanted) if self._table else 0
        if gravest == 0:
            return "", 0
        rank = self._agreement.lowest_rank_with_max(wanted)
        text = self._agreement.broadcast_text(text, rank)
        self._hard = INSTABILITY_ACTIONS[gravest - 1]
        if self._hard in MITIGATIONS:
            self._soften(self._hard, text, rank, norm)
            self._hard = None
        return text, rank

    def _soften(self, answer: Action, text: str, rank: int, norm: float) -> None:
        """The step is as it would be, and the next ones are more careful."""
        event = StepEvent(self._step, AnomalyKind.INSTABILITY.label, text, rank, cause="instability", action=answer)
        event.reason = "the policy's answer to this instability"
        if answer == "cut_lr":
            event.lr_factor = self._lr_cut.cut()
            event.notes.append(f"learning rates are multiplied with {event.lr_factor:.4g}")
        else:
            lowered = self._clip.lower(norm)
            clipped = "nothing: no norm is known that could be lowered" if lowered is None else f"{lowered:.4g}"
            event.notes.append(f"gradients are clipped to a norm of {clipped}")
        self._tell(event)

    def _note(self, monitor: Monitor, event: StepEvent) -> None:
        from torchnan.monitor import format

        if event.finding is not None:
            monitor.record.record_finding(event.step, format.finding_summary(event.finding))
        elif event.origin:
            monitor.record.record_finding(event.step, {"text": sanitize_text(event.origin), "rank": event.rank})
        if event.finite_in_float32 is not None:
            monitor.record.record_rerun(event.step, "float32", event.finite_in_float32)
