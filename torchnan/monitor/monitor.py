"""Monitor: fed once per step, writes a row, and says when something goes wrong."""

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
from torchnan.monitor import compute_dtype
from torchnan.monitor.headroom import ModuleHeadroom
from torchnan.monitor.log import MonitorLog
from torchnan.monitor.options import (
    MonitorOptions,
    as_scalar,
    as_scalars,
    validate_callbacks,
    validate_meta,
    validate_step,
)
from torchnan.monitor.pending_row import PendingRow, Scalar
from torchnan.monitor.row import Row
from torchnan.monitor.row_writer import RowWriter, group_names
from torchnan.monitor.trackers import Callback, TensorBoard
from torchnan.monitor.weights import WeightStatistics

if TYPE_CHECKING:
    from torchnan.detection.session import detect
    from torchnan.diagnosis import Thresholds, Verdict

MAX_PENDING = 64  # rows whose numbers are still being computed

_open: weakref.WeakSet[Monitor] = weakref.WeakSet()


class Monitor:
    """Keeps a row of numbers per training step, and judges them as they come.

    Call :meth:`step` once per step, or give it to a :class:`torchnan.StepGuard` (``monitor=``) or to the callbacks for
    Lightning and Transformers, which know most of what it wants without another look at the gradients.

    Nothing waits for a GPU: numbers that are computed there are copied as they come and read when they have arrived,
    so that a row may be written a few steps late. With ``TORCHNAN=0`` in the environment nothing is done.

    Args:
        log: file for the rows, JSON lines; it is appended to. ``None``: none is written. One file may have
            ``max_bytes`` (64 MiB); then it becomes ``<log>.1``, and so on, up to ``parts`` files (16), of which the
            oldest goes.
        thresholds: what counts as what: :class:`torchnan.diagnosis.Thresholds`, a dict of them, or a TOML file.
        tensorboard: a folder for event files, or a ``SummaryWriter``.
        callback: ``callback(step, scalars)`` gets the finite numbers of each row by name, for any other tracker.
        on_instability: called with each :class:`torchnan.diagnosis.Verdict`, once, when it becomes true.
        meta: what is to be in the first line: names and numbers of the program's own.
        watch: a :class:`torchnan.detect` made with ``headroom=True``, which tells how near the outputs of modules come
            to the end of their range. ``None``: the one in force when a row is made, if it was made so.
        options: ``live=True``: judge the run as it goes on, by its last ``window=1000`` rows, when a row is unlike
            those before it and every ``judge_every=10`` rows. ``weights_every=20``, ``headroom_every=50``: steps from
            one look at the weights, or one question for headroom, to the next, 0 for none. ``all_ranks=False``: the
            first rank alone writes and judges; with True each does, to ``<log>.rank-<n>``. ``rerun_in_fp32=True``: a
            bad step in float16 or bfloat16 is run once more in float32, where a step guard replays it.
            ``dtype=None``: what the model computes in, where it cannot be seen.

    Attributes:
        options: as they are used.
        record: where the rows go; :attr:`weights`, :attr:`headroom` measure. They are for what feeds a Monitor in
            place of :meth:`step`.

    Raises:
        OptionError: an option that cannot be used; ``log`` is a file that is something else.
        TypeError: something that cannot be called, or no SummaryWriter.
        OSError: the log cannot be written.
        ImportError: ``live`` needs NumPy and SciPy, ``tensorboard`` tensorboard.

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
        **options: Any,
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
        """One step has been taken: call it after ``optimizer.step()`` and ``scaler.update()``, before
        ``scheduler.step()``. All is optional; what is not given is not known.

        Args:
            loss: a number, or a tensor of one element; a list of them, of the micro-batches, is averaged.
            model: whose weights are measured, if there is no optimizer.
            optimizer: has the learning rates, and the parameters in groups.
            scaler: its scale tells whether it has skipped the step.
            batch: of which a digest is kept: nested mappings, sequences and dataclasses of tensors; a list of
                micro-batches.
            grad_norm: of all gradients before clipping, as ``clip_grad_norm_`` returns it. There is no scan for it.
            lr: learning rate, or those of the groups, in place of the optimizer's.
            skipped: the step was not applied.
            step: its number. Default: one more than the last. A lower one: the run has gone back.

        Raises:
            TypeError: an argument that cannot be used.
        """
        if self._is_off:
            return
        validate_step(step, model, optimizer, scaler, skipped)
        losses, norm, rates = as_scalars("loss", loss), as_scalar("grad_norm", grad_norm), as_scalars("lr", lr)
        last = self._pending[-1].row.step if self._pending else self.record.last_step
        with self._failures.contained("the monitor"):
            if self.record.groups is None or len(self.record.groups) != len(group_names(model, optimizer)):
                self.flush()
                graphs = (compute_dtype.infer_from_loss(loss) for loss in losses if isinstance(loss, torch.Tensor))
                self.record.begin_run(model, optimizer, scaler, next(graphs, None))
            row = Row(last + 1 if step is None else step, skipped=skipped)
            pending = PendingRow(row)
            self._pending.append(pending)
            single = {"grad_norm": norm, "loss_scale": self._scale_before(scaler), "next_scale": self._scale}
            several = self.weights.measure(model, optimizer)
            row.headroom = self.headroom.measure()
            pending.add(single, {**several, "loss": losses, "lr": rates or learning_rates(optimizer)})
            if batch is not None:
                pending.add_batch(batch)
        self._write_ready_rows(MAX_PENDING)

    def flush(self) -> None:
        """Writes the rows whose numbers were still being computed; waits for them."""
        self._write_ready_rows(0)

    def close(self) -> None:
        """The end of the run: as :meth:`flush`, and for TensorBoard. Called by itself when the program ends."""
        self.flush()
        self.record.close()

    @property
    def failures(self) -> dict[str, int]:
        """Parts of the monitor's own work that could not be done, and how often; each was warned about once."""
        return dict(self._failures.counts)

    @property
    def dtype(self) -> str | None:
        """What the model computes in: ``"float32"``, ``"float16"``, ``"bfloat16"``; ``None`` if that is not known."""
        return self.record.dtype

    @property
    def verdicts(self) -> list[Verdict]:
        """Those that have become true, the last 100."""
        return list(self.record.verdicts)

    @property
    def is_off(self) -> bool:
        """``TORCHNAN=0``, or a rank that leaves it to the first."""
        return self._is_off

    def _write_ready_rows(self, max_pending: int) -> None:
        while self._pending and (len(self._pending) > max_pending or self._pending[0].is_ready):
            with self._failures.contained("the monitor"):
                row = self._pending.popleft().finish()
                new = self.record.diagnose(row)
                self.record.write(row)
                self.record.report(row.step, new)

    def _scale_before(self, scaler: torch.amp.GradScaler | None) -> Scalar | None:
        """That of the step, which the scaler has changed since; notes what it is now."""
        before = self._scale
        self._scale = current_loss_scale(scaler)
        if before is None and scaler is not None:
            before = float(scaler._init_scale) if scaler.is_enabled() else 1.0
        return before


def load_thresholds(given: Any) -> Thresholds:
    """The table that is meant.

    Raises:
        ImportError: what judges by it is not installed.
        OptionError: it cannot be used.
    """
    try:
        from torchnan.diagnosis import Thresholds
    except ImportError as error:
        raise ImportError(
            f"Monitor judges a run with NumPy and SciPy ({error}): pip install torchnan[diagnose], or give live=False, "
            "and the log is written all the same"
        ) from error
    if given is None or isinstance(given, Thresholds):
        return given or Thresholds()
    if isinstance(given, Mapping):
        return Thresholds.from_dict(given)
    if isinstance(given, str | os.PathLike):
        return Thresholds.from_toml(given)
    raise OptionError(f"thresholds is a {type_name(given)}: it takes Thresholds, a dict, or the path of a TOML file.")


def learning_rates(optimizer: torch.optim.Optimizer | None) -> list[Scalar]:
    """Learning rates of the groups."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [number for group in groups if (number := as_scalar("lr", group.get("lr"))) is not None]


def current_loss_scale(scaler: torch.amp.GradScaler | None) -> Scalar | None:
    """The loss scale, where it is; one, where the scaler is switched off."""
    if scaler is not None and not scaler.is_enabled():
        return 1.0
    scale: torch.Tensor | None = None if scaler is None else scaler._scale
    return None if scale is None else scale.detach().clone()


@atexit.register
def _close_all() -> None:
    for monitor in list(_open):
        monitor.close()
