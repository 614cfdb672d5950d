"""Where the rows of a run go: the log, trackers, the judgement of the run as it goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchnan.monitor import compute_dtype
from torchnan.monitor.log import MonitorLog
from torchnan.monitor.options import MonitorOptions
from torchnan.monitor.row import Row, finite, named
from torchnan.monitor.trackers import Callback, TensorBoard
from torchnan.monitor.weights import names_of
from torchnan.recovery.failures import Failures

if TYPE_CHECKING:
    from torchnan.diagnosis import Thresholds, Verdict
    from torchnan.monitor.online import Live, News

logger = logging.getLogger("torchnan")

MOST_VERDICTS = 100


class Record:
    """Of one run after another, of one process.

    Args:
        options: of the Monitor.
        rank: of this process.
        meta: for the first line.
        log, tensorboard, callback, on_instability: where rows and verdicts go; ``None``: not there.
        thresholds: what the run is judged by; ``None``: it is not judged.
        failures: told of what could not be done.

    Attributes:
        dtype: what the model computes in, ``None`` if that is not known.
        groups: names of the parameter groups of the run that has begun; ``None`` before the first.
        last_step: of the newest row.
        verdicts: those that have become true, the last 100.
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
        self._live: Live | None = None

    def begin(self, model: Any, optimizer: Any, scaler: Any, graph: str | None) -> None:
        """A run begins, or goes on with other parameter groups.

        Args:
            graph: what the model computes in, by the graph of its loss.
        """
        scaled = "float16" if scaler is not None and scaler.is_enabled() else None
        self.dtype = (
            self._options.dtype or scaled or compute_dtype.of_parameters(model, optimizer) or graph or self.dtype
        )
        self.groups = named(groups_of(model, optimizer))
        if self._log is not None:
            with self._failures.contained("writing to the monitor's log"):
                self._log.start({"dtype": self.dtype, "groups": self.groups, **self._first_line})
        if self._thresholds is not None:
            from torchnan.monitor.online import Live
            from torchnan.monitor.window import Window

            window = Window(self._options.window, self.dtype, self.groups or [])
            self._live = Live(window, self._thresholds, self._options.judge_every)

    def judge(self, row: Row) -> News | None:
        """What becomes true with this row."""
        self.last_step = row.step
        if self._live is not None:
            with self._failures.contained("judging the run"):
                return self._live.add(row)
        return None

    def write(self, row: Row) -> None:
        """The row is whole."""
        if self._live is not None and row.skipped is not None:
            self._live.window.set_skipped(row.skipped)
        self._line(row.facts())
        scalars = row.scalars(self.groups or []) if self._tensorboard or self._callback else {}
        if self._tensorboard is not None:
            with self._failures.contained("the monitor's TensorBoard"):
                self._tensorboard.scalars(row.step, scalars)
        if self._callback is not None:
            with self._failures.contained("the monitor's callback"):
                self._callback(row.step, scalars)

    def tell(self, step: int, news: News | None) -> None:
        """Warns, logs, and lets the program know, of what has become true."""
        if news is None:
            return
        from torchnan.monitor import format

        for forecast in news.forecasts:
            self._line({"forecast": format.facts_of(forecast), "step": step})
            self._warn(step, f"torchnan: {forecast}")
        for verdict in news.verdicts:
            self.verdicts = [*self.verdicts, verdict][-MOST_VERDICTS:]
            self._line({"verdict": format.facts_of(verdict), "step": step})
            self._warn(step, format.text_of(verdict))
            if self._on_instability is not None:
                with self._failures.contained("the monitor's on_instability"):
                    self._on_instability(verdict)

    def note_finding(self, step: int, facts: dict[str, Any]) -> None:
        """The origin of a non-finite value, as a replay has named it."""
        self._note("findings", {"finding": facts, "step": step})

    def note_rerun(self, step: int, dtype: str, is_finite: bool) -> None:
        """What a bad step has come to in another dtype."""
        self._note("reruns", {"rerun": {"step": step, "dtype": dtype, "finite": is_finite}})

    def close(self) -> None:
        """The end of the run."""
        if self._tensorboard is not None:
            with self._failures.contained("the monitor's TensorBoard"):
                self._tensorboard.close()

    def _note(self, kind: str, line: dict[str, Any]) -> None:
        if self._live is not None:
            getattr(self._live.window, kind).append(line.get("rerun", line))
        self._line(line)

    def _line(self, facts: dict[str, Any]) -> None:
        if self._log is not None:
            with self._failures.contained("writing to the monitor's log"):
                self._log.write(finite(facts))

    def _warn(self, step: int, text: str) -> None:
        with self._failures.contained("a handler of the program's log"):
            logger.warning("%s", text)
        if self._tensorboard is not None:
            with self._failures.contained("the monitor's TensorBoard"):
                self._tensorboard.text(step, text)


def groups_of(model: Any, optimizer: Any) -> list[str]:
    """Names of the groups that weights are measured in."""
    if optimizer is not None:
        return names_of(optimizer.param_groups)
    return [] if model is None else ["model"]
