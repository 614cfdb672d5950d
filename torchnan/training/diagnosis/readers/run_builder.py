"""Assembles a run from columns that a reader adds piece by piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchnan.config.text import brief, printable
from torchnan.training.diagnosis.arrays import FloatArray, IntArray
from torchnan.training.diagnosis.run import COLUMNS, GROUPED, READ_COLUMNS, Column, Digests, Headroom, Run

Values = Sequence[Any] | FloatArray | Column

MAX_STEP = 2**53  # integers up to here are exact in float64
ROWS_PER_REVERSAL = 20  # with more reversals of the step, the file is unordered; with fewer, the run went back
MAX_NOTES = 20
MAX_CANDIDATES = 30
MISSING = {"", "none", "null", "na", "n/a", "-"}


@dataclasses.dataclass
class RunBuilder:
    """The pieces of a run that were read so far.

    Attributes:
        source: the path that they are read from.
        dtype, findings, reruns, actions, notes: as in :class:`Run`.
        rows: number of rows so far.
    """

    source: str
    dtype: str | None = None
    findings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    reruns: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    actions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    _steps: list[FloatArray] = dataclasses.field(default_factory=list)
    _columns: dict[str, dict[int, Column]] = dataclasses.field(default_factory=dict)
    _digests: dict[int, Digests] = dataclasses.field(default_factory=dict)
    _headroom: dict[tuple[str, str], list[tuple[int, float]]] = dataclasses.field(default_factory=dict)
    _unread: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    _starts: list[int] = dataclasses.field(default_factory=list)
    _candidates: list[str] = dataclasses.field(default_factory=list)
    _is_counted: bool = False
    rows: int = 0

    def add_note(self, text: str) -> None:
        """Adds a note about the source."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(printable(text))

    def add_candidates(self, names: Iterable[str]) -> None:
        """Records names that are not columns, for the message if there is no loss."""
        new = (printable(name, 60) for name in names)
        self._candidates += [name for name in dict.fromkeys(new) if name not in self._candidates]
        del self._candidates[MAX_CANDIDATES:]

    def add_start(self) -> None:
        """Records that the run was started, or restarted, before the next row."""
        self._starts.append(self.rows)

    def add(self, step: Values | None, columns: Mapping[str, Values]) -> None:
        """Adds rows.

        Args:
            step: step of each row; ``None`` if there is none. Then the epochs are the steps, if there is a row of each,
            else
                the numbers of the rows.
            columns: values by column, ``None`` if there is none; ``"lr/<group>"`` is the column of a group.
        """
        piece = len(self._steps)
        if step is None:
            self._is_counted = True
            step = np.arange(self.rows, self.rows + len(next(iter(columns.values()), ())), dtype=np.float64)
        self._steps.append(self._numbers("step", step).values)
        for name, values in columns.items():
            if name == "batch_digest":
                self._digests[piece] = Digests.of(() if isinstance(values, Column) else values)
            else:
                self._columns.setdefault(name, {})[piece] = self._numbers(name, values)
        self.rows += len(step)

    def add_headroom(self, row: int, module: str, dtype: str, largest: float) -> None:
        """Adds a value to the row of a number."""
        self._headroom.setdefault((module, dtype), []).append((row, largest))

    def _numbers(self, name: str, values: Values) -> Column:
        if isinstance(values, Column):
            return values
        try:
            of_text = len(values) and type(values[0]) is str
            numbers = np.array(list(map(float, values)) if of_text else values, dtype=np.float64)
            if numbers.ndim != 1:
                raise ValueError
        except (ValueError, TypeError, OverflowError):
            return Column.of([self._number(name, value) for value in values])
        given = np.ones(len(numbers), dtype=bool)
        for i in np.flatnonzero(np.isnan(numbers)).tolist():
            given[i] = values[i] is not None
        return Column(numbers, given)

    def _number(self, name: str, value: Any) -> float | None:
        if value is None or (isinstance(value, str) and value.strip().lower() in MISSING):
            return None
        try:
            return float(value)
        except (ValueError, TypeError, OverflowError):
            self._unread.setdefault(name, []).append(brief(value))
            return None

    def build(self) -> Run:
        """Returns the run."""
        steps = np.concatenate(self._steps) if self._steps else np.empty(0)
        columns = _summed({name: self._joined(name) for name in self._columns})
        if "loss" not in columns and "eval_loss" in columns:
            columns["loss"] = columns.pop("eval_loss")
            self.add_note("There is no loss of the training: that of the evaluation is diagnosed.")
        epoch, nan_iterations = columns.pop("epoch", None), columns.pop("nan_iterations", None)
        if nan_iterations is not None:
            self._mark_nan_iterations(columns, nan_iterations)
        steps = self._numbered(steps, epoch)
        usable = np.isfinite(steps) & (np.abs(steps) <= MAX_STEP)
        usable[usable] &= steps[usable] == np.round(steps[usable])
        last_seen = int(steps[usable].max()) if usable.any() else None
        if columns or self._digests:
            usable &= np.any([column.given for column in columns.values()] + [self._all_digests().given], axis=0)
        whole: IntArray = np.where(usable, steps, 0).astype(np.int64)
        if unusable := int((~usable).sum()):
            self.add_note(f"{unusable:,} rows have no step that is a whole number, or no value: left out.")
        rows = self._in_order(whole, self._merged(whole, np.flatnonzero(usable), columns))
        for name, unread in self._unread.items():
            self.add_note(f"{name}: {len(unread):,} values are not numbers, such as {unread[0]}.")
        run = Run(
            whole[rows],
            {name: column[rows] for name, column in columns.items() if name in READ_COLUMNS},
            _by_group(columns, rows),
            self._all_digests()[rows] if self._digests else None,
            self._all_headroom(whole, rows),
            dtype=self.dtype,
            starts=self._all_starts(whole, rows),
            source=self.source,
            notes=self.notes,
        )
        run.findings, run.reruns, run.actions = self.findings, self.reruns, self.actions
        run.candidates, run.last_seen = self._candidates, last_seen
        run.unread_losses = len(self._unread.get("loss", ()))
        if "lr" not in run.columns and run.groups.get("lr"):
            run.columns["lr"] = _largest(list(run.groups["lr"].values()))
        return run

    def _mark_nan_iterations(self, columns: dict[str, Column], counted: Column) -> None:
        """Makes the loss NaN where NaN iterations were counted, which Megatron-LM leaves out of its mean."""
        bad = counted.given & (counted.values > 0)
        if not bad.any():
            return
        loss = columns.get("loss") or Column.missing(len(bad))
        columns["loss"] = Column(np.where(bad, np.nan, loss.values), loss.given | bad)
        self.add_note(f"{bad.sum():,} rows count NaN iterations, which their loss leaves out: it is read as NaN.")

    def _numbered(self, steps: FloatArray, epoch: Column | None) -> FloatArray:
        """Returns the steps: those in the file, or the epochs; numbers of rows if steps start again with each epoch."""
        if self._is_counted:
            if epoch is not None and epoch.given.all() and _count_up(epoch.values):
                return epoch.values
            self.add_note("There is no column of steps: rows are counted from 0.")
            return steps
        falls = np.flatnonzero(np.diff(steps) < 0) + 1
        if epoch is None or not len(falls) or self._starts[1:]:
            return steps
        known = np.maximum.accumulate(np.where(epoch.given, np.nan_to_num(epoch.values, nan=-np.inf), -np.inf))
        if not (known[falls] > known[falls - 1]).all():
            return steps
        self.add_note("The steps begin again with each epoch: rows are counted from 0.")
        return np.arange(len(steps), dtype=np.float64)

    def _merged(self, steps: IntArray, rows: IntArray, columns: dict[str, Column]) -> IntArray:
        """Merges a row into the next one if both have the same step and share no column: some programs write training
        and evaluation of a step in separate rows. Returns the remaining rows."""
        same = np.flatnonzero(np.diff(steps[rows]) == 0)
        starts = set(self._starts)
        gone = []
        for i in same.tolist():
            row, next_ = int(rows[i]), int(rows[i + 1])
            if next_ in starts or any(c.given[row] and c.given[next_] for c in columns.values()):
                continue
            for column in columns.values():
                if column.given[row]:
                    column.values[next_], column.given[next_] = column.values[row], True
            gone.append(i)
        remaining: IntArray = np.delete(rows, gone)
        return remaining

    def _joined(self, name: str) -> Column:
        pieces = self._columns[name]
        parts = [pieces.get(i) or Column.missing(len(step)) for i, step in enumerate(self._steps)]
        return Column(np.concatenate([p.values for p in parts]), np.concatenate([p.given for p in parts]))

    def _all_digests(self) -> Digests:
        parts = [self._digests.get(i) or Digests.missing(len(step)) for i, step in enumerate(self._steps)]
        return Digests(np.concatenate([p.values for p in parts]), np.concatenate([p.given for p in parts]))

    def _in_order(self, steps: IntArray, rows: IntArray) -> IntArray:
        """Returns the rows with strictly increasing steps. If the run went back, the later of two rows of a step
        counts.
        """
        back = int((np.diff(steps[rows]) <= 0).sum())
        if not back:
            return rows
        if back > max(1, len(rows) // ROWS_PER_REVERSAL):
            self.add_note(
                f"The rows are unordered ({back:,} go back): sorted; of rows with the same step the last is used."
            )
            rows = rows[np.argsort(steps[rows], kind="stable")]
            last: IntArray = rows[np.append(np.diff(steps[rows]) > 0, True)]
            return last
        later = np.minimum.accumulate(steps[rows][::-1])[::-1]
        kept = np.append(steps[rows][:-1] < later[1:], True)
        times = "once" if back == 1 else f"{back:,} times"
        self.add_note(f"The run went back {times}: {(~kept).sum():,} rows that were written again are left out.")
        self._starts += (np.flatnonzero(np.diff(steps[rows]) <= 0) + 1).tolist()
        held: IntArray = rows[kept]
        return held

    def _all_starts(self, steps: IntArray, rows: IntArray) -> list[int]:
        if not len(rows):
            return []
        at = np.searchsorted(np.sort(rows), [start for start in self._starts if start <= rows.max()])
        return sorted({int(steps[rows[0]]), *(int(steps[rows[i]]) for i in at)})

    def _all_headroom(self, steps: IntArray, rows: IntArray) -> list[Headroom]:
        kept = set(rows.tolist()) if self._headroom else set()
        found = []
        for (module, dtype), values in self._headroom.items():
            by_step = {int(steps[row]): largest for row, largest in values if row in kept}
            step = np.array(sorted(by_step), dtype=np.int64)
            found.append(Headroom(module, dtype, step, np.array([by_step[s] for s in step.tolist()], dtype=np.float64)))
        return found


def _count_up(values: FloatArray) -> bool:
    return bool((np.diff(values) > 0).all() and np.isfinite(values).all() and (values == np.round(values)).all())


def _summed(columns: dict[str, Column]) -> dict[str, Column]:
    """Returns the columns; parts of one ("loss#0", "loss#1") are replaced by their sum."""
    parts: dict[str, list[Column]] = {}
    for name, column in columns.items():
        parts.setdefault(name.partition("#")[0], []).append(column)
    return {name: several[0] if len(several) == 1 else _sum(several) for name, several in parts.items()}


def _sum(columns: list[Column]) -> Column:
    given = np.all([column.given for column in columns], axis=0)
    given |= np.any([column.bad for column in columns], axis=0)
    total = np.sum([np.where(column.given, column.values, 0.0) for column in columns], axis=0)
    return Column(np.where(given, total, np.nan), given)


def _by_group(columns: dict[str, Column], rows: IntArray) -> dict[str, dict[str, Column]]:
    groups: dict[str, dict[str, Column]] = {}
    for name, column in columns.items():
        kind, _, group = name.partition("/")
        if kind in GROUPED and (group or kind not in COLUMNS):
            groups.setdefault(kind, {})[group or "all"] = column[rows]
    return groups


def _largest(columns: list[Column]) -> Column:
    given = np.any([column.given for column in columns], axis=0)
    values = np.max([np.where(column.given, column.values, -np.inf) for column in columns], axis=0)
    return Column(np.where(given, values, np.nan), given)
