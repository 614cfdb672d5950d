"""Writes rows to the log and the trackers, and reports what their diagnosis finds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchnan.detection.containment import Failures
from torchnan.training.monitor import compute_dtype
from torchnan.training.monitor.log import MonitorLog
from torchnan.training.monitor.options import MonitorOptions
from torchnan.training.monitor.row import Row
from torchnan.training.monitor.trackers import Callback, TensorBoard
from torchnan.training.monitor.weights import group_names
from torchnan.training.storage.jsonl import sanitize_text

if TYPE_CHECKING:
    from torchnan.training.diagnosis import Thresholds, Verdict
    from torchnan.training.monitor.online import NewVerdicts, OnlineDiagnosis

logger = logging.getLogger("torchnan")

MAX_VERDICTS = 100


class RowWriter:
    """Writes the rows of one process, for one run after another.

    Args:
        options: the Monitor's options.
        rank: rank of this process.
        meta: metadata for the first line.
        log, tensorboard, callback, on_instability: where rows and verdicts go; ``None``: nowhere.
        thresholds: limits of the online diagnosis; ``None``: no diagnosis.
        failures: counts what could not be done.

    Attributes:
        dtype: dtype that the model computes in, ``None`` if unknown.
        groups: names of the parameter groups of the current run; ``None`` before the first run.
        last_step: number of the newest row.
        verdicts: the last 100 verdicts.
    """

    def __init__(
        self,
        options: MonitorOptions,
        rank: int,
        meta: dict[str, Any],
        log: MonitorLog | None,
        tensorboard: TensorBoard | None,
        callback: Callback | None,
        on_instability: Callable[[Verdict], Any] | None,
        thresholds: Thresholds | None,
        failures: Failures,
    ) -> None:
        self.dtype = options.dtype
        self.groups: list[str] | None = None
        self.last_step = 0
        self.verdicts: list[Verdict] = []
        self._options = options
        self._first_line = {"meta": meta, **({"rank": rank} if options.all_ranks else {})}
        self._log, self._tensorboard, self._callback = log, tensorboard, callback
        self._on_instability = on_instability
        self._thresholds = thresholds
        self._failures = failures
        self._online: OnlineDiagnosis | None = None

    def begin_run(self, model: Any, optimizer: Any, scaler: Any, graph: str | None) -> None:
        """Starts a run, or continues it with other parameter groups.

        Args:
            graph: dtype that was found in the graph of the loss.
        """
        scaled = "float16" if scaler is not None and scaler.is_enabled() else None
        self.dtype = (
            self._options.dtype
            or scaled
            or compute_dtype.infer_from_parameters(model, optimizer)
            or graph
            or self.dtype
        )
        self.groups = sanitize_text(group_names(model, optimizer))
        if self._log is not None:
            with self._failures.contained("writing to the monitor's log"):
                self._log.start({"dtype": self.dtype, "groups": self.groups, **self._first_line})
        if self._thresholds is not None:
            from torchnan.training.monitor.online import OnlineDiagnosis
            from torchnan.training.monitor.recent_rows import RecentRows

            window = RecentRows(self._options.window, self.dtype, self.groups or [])
            self._online = OnlineDiagnosis(window, self._thresholds, self._options.judge_every)

    def diagnose(self, row: Row) -> NewVerdicts | None:
        """Adds a row to the online diagnosis, and returns what became true with it."""
        self.last_step = row.step
        if self._online is not None:
            with self._failures.contained("the diagnosis of the run"):
                return self._online.add(row)
        return None

    def write(self, row: Row) -> None:
        """Writes a finished row."""
        if self._online is not None and row.skipped is not None:
            self._online.window.set_skipped(row.skipped)
        if self._log is not None:
            self._log_line(row.to_dict())
        if self._tensorboard is None and self._callback is None:
            return
        scalars = row.scalars(self.groups or [])
        if self._tensorboard is not None:
            with self._failures.contained("the monitor's TensorBoard"):
                self._tensorboard.scalars(row.step, scalars)
        if self._callback is not None:
            with self._failures.contained("the monitor's callback"):
                self._callback(row.step, scalars)

    def report(self, step: int, new: NewVerdicts | None) -> None:
        """Reports verdicts and forecasts: a warning, a line of the log, TensorBoard, ``on_instability``."""
        if new is None:
            return
        from torchnan.training.monitor import format

        for forecast in new.forecasts:
            self._log_line({"forecast": format.to_dict(forecast), "step": step})
            self._warn(step, f"torchnan: {forecast}")
        for verdict in new.verdicts:
            self.verdicts = [*self.verdicts, verdict][-MAX_VERDICTS:]
            self._log_line({"verdict": format.to_dict(verdict), "step": step})
            self._warn(step, format.verdict_text(verdict))
            if self._on_instability is not None:
                with self._failures.contained("the monitor's on_instability"):
                    self._on_instability(verdict)

    def record_finding(self, step: int, fields: dict[str, Any]) -> None:
        """Records the origin of a non-finite value that a replay found."""
        line = {"finding": fields, "step": step}
        if self._online is not None:
            self._online.window.findings.append(line)
        self._log_line(line)

    def record_rerun(self, step: int, dtype: str, is_finite: bool) -> None:
        """Records whether a bad step is finite in another dtype."""
        rerun = {"step": step, "dtype": dtype, "finite": is_finite}
        if self._online is not None:
            self._online.window.reruns.append(rerun)
        self._log_line({"rerun": rerun})

    def record_action(self, step: int, action: str) -> None:
        """Records what a step guard did about a bad step."""
        self._log_line({"guard_action": action, "step": step})

    def leave_to_parent(self) -> None:
        """Leaves the rows so far to the process that this one was forked from."""
        if self._online is not None:
            self._online.forget_rows()

    def close(self) -> None:
        """Diagnoses the rows since the last walk of the decision tree, and closes TensorBoard's files."""
        if self._online is not None and self._online.is_behind:
            with self._failures.contained("the diagnosis of the run"):
                self.report(self.last_step, self._online.diagnose())
        if self._tensorboard is not None:
            with self._failures.contained("the monitor's TensorBoard"):
                self._tensorboard.close()

    def _log_line(self, fields: dict[str, Any]) -> None:
        if self._log is not None:
            with self._failures.contained("writing to the monitor's log"):
                self._log.write(fields)

    def _warn(self, step: int, text: str) -> None:
        with self._failures.contained("a logging handler"):
            logger.warning("%s", text)
        if self._tensorboard is not None:
            with self._failures.contained("the monitor's TensorBoard"):
                self._tensorboard.text(step, text)
