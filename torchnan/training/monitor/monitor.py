"""The Monitor: takes the numbers of each step, writes a row, and warns when the run becomes unstable."""

from __future__ import annotations

import atexit
import collections
import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.text import type_name
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement, AgreementError
from torchnan.training.guard.snapshots import TrainingState
from torchnan.training.guard.step_observer import StepMonitor, StepObserver
from torchnan.training.monitor import compute_dtype
from torchnan.training.monitor.guard_feed import MonitorFeed, StepDefaults
from torchnan.training.monitor.headroom import ModuleHeadroom
from torchnan.training.monitor.log import MonitorLog
from torchnan.training.monitor.options import (
    MonitorOptions,
    as_scalar,
    as_scalars,
    validate_callbacks,
    validate_meta,
    validate_step,
)
from torchnan.training.monitor.pending_row import PendingRow, Scalar, current_loss_scale, learning_rates
from torchnan.training.monitor.row import Row
from torchnan.training.monitor.row_writer import RowWriter
from torchnan.training.monitor.trackers import Callback, TensorBoard
from torchnan.training.monitor.weights import WeightStatistics, group_count

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from torchnan.detection.session import detect
    from torchnan.training.diagnosis import Thresholds, Verdict
    from torchnan.training.monitor.keywords import MonitorKeywords

MAX_PENDING = 64  # rows whose numbers are still being computed

_open: weakref.WeakSet[Monitor] = weakref.WeakSet()


class Monitor(StepMonitor):
    """Records a row of numbers per training step and diagnoses the run while it goes on.

    Call :meth:`step` once per step, or pass the monitor to a :class:`torchnan.StepGuard` (``monitor=``) or to the
    callbacks for Lightning and Transformers, which already have most of the numbers.

    It never waits for a GPU: numbers computed there are copied asynchronously and read when they have arrived, so a row
    may be written a few steps late. With ``TORCHNAN=0`` in the environment it does nothing.

    Args:
        log: file that rows are appended to, as JSON Lines; ``None``: no file. Missing folders above it are made, for
            their owner alone. A file that reaches ``max_bytes`` (64 MiB) becomes ``<log>.1``, and so on. All are
            kept; with ``parts=16``, at most so many files.
        thresholds: :class:`torchnan.diagnosis.Thresholds`, a dict of them, or a TOML file.
        tensorboard: a folder for event files, or a ``SummaryWriter``.
        callback: ``callback(step, scalars)`` gets the finite numbers of each row by name, for any other tracker.
        on_instability: called with each :class:`torchnan.diagnosis.Verdict`, once, when it becomes true.
        meta: names and numbers for the first line of the log.
        watch: a :class:`torchnan.detect` made with ``headroom=True``, which measures how near the outputs of modules
            come to the limit of their dtype. ``None``: the one in force when a row is made, if it was made so.
        options: ``live=True``: diagnose the run while it goes on, by its last ``window=1000`` rows, when a row is
            unlike those before it and every ``judge_every=50`` rows. ``weights_every=20``, ``headroom_every=50``: steps
            between two measurements of the weights, or two queries of headroom; 0 for none. ``all_ranks=False``: only
            the first rank writes and diagnoses; with True each rank does, to ``<log>.rank-<n>``.
            ``rerun_in_fp32=True``: a step guard that replays a bad step in float16 or bfloat16 runs it once more in
            float32. ``dtype=None``: the dtype that the model computes in, where it cannot be inferred.

    Attributes:
        options: the options in use.
        record: writes the rows; ``weights`` and ``headroom`` measure. For integrations that feed a Monitor
            without calling :meth:`step`.

    Raises:
        OptionError: an option cannot be used, or ``log`` is a file of another kind.
        TypeError: an argument is not callable, or is not a SummaryWriter.
        OSError: the log cannot be written.
        ImportError: ``live`` needs NumPy and SciPy, ``tensorboard`` needs tensorboard.

    Example::

        monitor = torchnan.Monitor(log="run.jsonl")
        for batch in loader:
            ...
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            monitor.step(loss=loss, model=model, optimizer=optimizer, batch=batch, grad_norm=norm)
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | None = None,
        *,
        thresholds: Thresholds | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        tensorboard: Any = None,
        callback: Callback | None = None,
        on_instability: Callable[[Verdict], Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        watch: detect | None = None,
        **options: Unpack[MonitorKeywords],
    ) -> None:
        self.options = MonitorOptions.from_dict({"log": log, **options})
        validate_callbacks(callback, on_instability)
        about = validate_meta(meta or {})
        rank = Agreement().global_rank
        self._is_off = _C.is_disabled() or (rank > 0 and not self.options.all_ranks)
        self._failures = Failures(let_through=AgreementError)
        path = None if self._is_off else self.options.path_of(rank)
        uses_tensorboard = tensorboard is not None and not self._is_off and rank == 0
        self.record = RowWriter(
            self.options,
            rank,
            about,
            None if path is None else MonitorLog(path, self.options.max_bytes, self.options.parts),
            TensorBoard(tensorboard) if uses_tensorboard else None,
            callback,
            on_instability,
            load_thresholds(thresholds) if self.options.live and not self._is_off else None,
            self._failures,
        )
        self.weights = WeightStatistics(self.options.weights_every)
        self.headroom = ModuleHeadroom(self.options.headroom_every, watch)
        self._pending: collections.deque[PendingRow] = collections.deque()
        self._scale: Scalar | None = None
        _open.add(self)

    def step(
        self,
        *,
        loss: Any = None,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        scaler: torch.amp.GradScaler | None = None,
        batch: Any = None,
        grad_norm: Any = None,
        lr: Any = None,
        skipped: bool | None = None,
        step: int | None = None,
    ) -> None:
        """Records one step. Call it after ``optimizer.step()`` and ``scaler.update()``, before ``scheduler.step()``.

        Every argument is optional.

        Args:
            loss: a number or a tensor of one element; a list of them, one per micro-batch, is averaged.
            model: measured if there is no optimizer.
            optimizer: provides the learning rates, and the parameters in groups.
            scaler: provides the loss scale, which shows whether the step was skipped.
            batch: data to compute a digest of: nested mappings, sequences and dataclasses of tensors; a list of
                micro-batches.
            grad_norm: norm of all gradients before clipping, as ``clip_grad_norm_`` returns it. It is not computed
                here.
            lr: learning rate, or those of the groups, instead of the optimizer's.
            skipped: whether the step was not applied.
            step: number of the step. Default: one more than the last. A lower number means that the run went back.

        Raises:
            TypeError: an argument cannot be used.
        """
        if self._is_off:
            return
        validate_step(step, model, optimizer, scaler, skipped)
        losses, norm, rates = as_scalars("loss", loss), as_scalar("grad_norm", grad_norm), as_scalars("lr", lr)
        last = self._pending[-1].row.step if self._pending else self.record.last_step
        with self._failures.contained("the monitor"):
            if self.record.groups is None or len(self.record.groups) != group_count(model, optimizer):
                self.flush()
                graphs = (compute_dtype.infer_from_loss(loss) for loss in losses if isinstance(loss, torch.Tensor))
                self.record.begin_run(model, optimizer, scaler, next(graphs, None))
            row = Row(last + 1 if step is None else step, skipped=skipped)
            pending = PendingRow(row)
            self._pending.append(pending)
            single = {"grad_norm": norm, "loss_scale": self._scale_before(scaler), "next_scale": self._scale}
            several = self.weights.measure(model, optimizer)
            row.headroom = self.headroom.measure()
            several["loss"], several["lr"] = losses, rates or learning_rates(optimizer)
            pending.add(single, several)
            if batch is not None:
                pending.add_batch(batch)
        self._write_ready_rows(MAX_PENDING)

    @property
    def finds_instabilities(self) -> bool:
        """Whether the run is diagnosed as it goes on: the option ``live``."""
        return self.options.live

    def make_observer(
        self, training: TrainingState, failures: Failures, defaults: StepDefaults | None = None
    ) -> StepObserver:
        """Returns what feeds this Monitor from a :class:`torchnan.StepGuard`, in place of :meth:`step`.

        Args:
            training: the model, the optimizer and the scaler of the guard.
            failures: counts what could not be done.
            defaults: how a framework's training loop differs from the guard's own steps.
        """
        if self._is_off:
            return StepObserver()
        defaults = defaults or StepDefaults()
        return MonitorFeed(self.record, self.weights, self.headroom, self.options, training, failures, defaults)

    def flush(self) -> None:
        """Waits for numbers that are still being computed, and writes their rows."""
        self._write_ready_rows(0)

    def close(self) -> None:
        """Writes and diagnoses all rows, and closes TensorBoard's files. Called automatically when the program ends."""
        self.flush()
        self.record.close()

    @property
    def failures(self) -> dict[str, int]:
        """How often each part of the monitor's own work failed; each was warned about once."""
        return dict(self._failures.counts)

    @property
    def dtype(self) -> str | None:
        """The dtype that the model computes in: ``"float32"``, ``"float16"``, ``"bfloat16"``; ``None`` if unknown."""
        return self.record.dtype

    @property
    def verdicts(self) -> list[Verdict]:
        """The last 100 verdicts."""
        return list(self.record.verdicts)

    @property
    def is_off(self) -> bool:
        """Whether the monitor does nothing: ``TORCHNAN=0``, or a rank other than the first."""
        return self._is_off

    def _write_ready_rows(self, max_pending: int) -> None:
        while self._pending and (len(self._pending) > max_pending or self._pending[0].is_ready):
            with self._failures.contained("the monitor"):
                row = self._pending.popleft().finish()
                new = self.record.diagnose(row)
                self.record.write(row)
                self.record.report(row.step, new)

    def _scale_before(self, scaler: torch.amp.GradScaler | None) -> Scalar | None:
        """Returns the scale that the step ran with, and stores the current one, which the scaler may have changed
        since.
        """
        before = self._scale
        self._scale = current_loss_scale(scaler)
        if before is None and scaler is not None:
            before = float(scaler._init_scale) if scaler.is_enabled() else 1.0
        return before


def load_thresholds(given: Any) -> Thresholds:
    """Returns the thresholds from an object, a dict or a TOML file.

    Raises:
        ImportError: NumPy or SciPy is not installed.
        OptionError: the thresholds cannot be used.
    """
    try:
        from torchnan.training.diagnosis import Thresholds
    except ImportError as error:
        raise ImportError(f"Monitor cannot diagnose the run: {error}, or pass live=False to write rows only") from error
    if given is None or isinstance(given, Thresholds):
        return given or Thresholds()
    if isinstance(given, Mapping):
        return Thresholds.from_dict(given)
    if isinstance(given, str | os.PathLike):
        return Thresholds.from_toml(given)
    raise OptionError(f"thresholds is a {type_name(given)}: it takes Thresholds, a dict, or the path of a TOML file.")


@atexit.register
def _close_all() -> None:
    for monitor in list(_open):
        monitor.close()


def _leave_rows_to_parent() -> None:
    for monitor in _open:
        monitor._pending.clear()
        monitor.record.leave_to_parent()


os.register_at_fork(after_in_child=_leave_rows_to_parent)
