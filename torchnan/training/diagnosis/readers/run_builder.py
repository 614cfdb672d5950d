"""Assembles a run from columns that a reader adds piece by piece."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchnan.config.text import brief, printable
from torchnan.training.diagnosis.arrays import BoolArray, FloatArray, IntArray
from torchnan.training.diagnosis.readers.column_names import is_watched
from torchnan.training.diagnosis.readers.encoded import has_nonfinite, to_float
from torchnan.training.diagnosis.run import COLUMNS, GROUPED, READ_COLUMNS, Column, Digests, Headroom, Run

Values = Sequence[Any] | FloatArray | Column

MAX_STEP = 2**53  # integers up to here are exact in float64
ROWS_PER_REVERSAL = 20  # with more reversals of the step, the file is unordered; with fewer, the run went back
MAX_NOTES = 20
MAX_CANDIDATES = 30
MAX_SERIES = 64  # in one file
MIN_SERIES_ROWS = 2
REPEATED = 0.05  # share of rows with the step of another: if more, the file has several series
IDENTITIES = ("step", "epoch")  # columns that number the rows
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
    _labels: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    _is_counted: bool = False
    _left_out: int = 0
    _left_out_nonfinite: int = 0
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

    def set_aside(self, names: Iterable[str], known: Container[str], values_of: Callable[[str], Sequence[Any]]) -> None:
        """Records the names that are not columns, and checks their values as :meth:`check_unread` does."""
        others = [name for name in names if name not in known]
        self.add_candidates(others)
        for name in filter(is_watched, others):
            self.check_unread(name, values_of(name))

    def leave_out(self, text: str = "", rows: int = 1) -> None:
        """Counts rows that cannot be read, and whether their text has a NaN or an Inf."""
        self._left_out += rows
        self._left_out_nonfinite += has_nonfinite(text)

    def check_unread(self, name: str, values: Sequence[Any]) -> None:
        """Counts the non-finite numbers of a loss or a gradient norm that no column of the run is read from."""
        if not is_watched(name):
            return
        found = [value for value in values if type(value) in (str, float) and _is_nonfinite(value)]
        if found:
            self._left_out_nonfinite += len(found)
            self.add_note(f"{name} is not read, and has {len(found):,} numbers that are not finite.")

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
                ``"rank"`` names the series of each row.
        """
        piece = len(self._steps)
        if step is None:
            self._is_counted = True
            step = np.arange(self.rows, self.rows + len(next(iter(columns.values()), ())), dtype=np.float64)
        self._steps.append(self._numbers("step", step).values)
        for name, values in columns.items():
            if name == "rank":
                self._labels[piece] = _labels(values)
            elif name == "batch_digest":
                self._digests[piece] = Digests.of(() if isinstance(values, Column) else values)
            else:
                self._columns.setdefault(name, {})[piece] = self._numbers(name, values)
        self.rows += len(step)

    def add_scalars(self, scalars: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        """Adds columns that were written one by one, each with its steps. The second number of a step in each column is
        one of the second row of that step: of another rank, or after a restart."""
        rows: dict[tuple[int, int], dict[str, float]] = {}
        for column, values in scalars.items():
            met = collections.Counter[int]()
            for step, value in values:
                rows.setdefault((met[step], step), {})[column] = value
                met[step] += 1
        longest = max(scalars.values(), key=len, default=())
        order = _as_written(rows, longest)
        self.add([step for _, step in order], {column: [rows[at].get(column) for at in order] for column in scalars})

    def add_headroom(self, row: int, module: str, dtype: str, largest: float) -> None:
        """Adds a value to the row of a number."""
        self._headroom.setdefault((module, dtype), []).append((row, largest))

    def _numbers(self, name: str, values: Values) -> Column:
        if isinstance(values, Column):
            return values
        try:
            of_text = len(values) and type(values[0]) is str
            numbers = np.array(list(map(to_float, values)) if of_text else values, dtype=np.float64)
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
            return to_float(value) if isinstance(value, str) else float(value)
        except (ValueError, TypeError, OverflowError):
            self._unread.setdefault(name, []).append(brief(value))
            self._left_out_nonfinite += name not in IDENTITIES and has_nonfinite(str(value)[:1000])
            return None

    def build(self) -> Run:
        """Returns the run; of several series the first, with all as its parts."""
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
        stepless = ~usable
        if columns or self._digests:
            known = np.any([column.given for column in columns.values()] + [self._all_digests().given], axis=0)
            self._left_out += int((stepless & known).sum())
            self._left_out_nonfinite += int(_bad_rows(columns, np.flatnonzero(stepless)).sum())
            usable &= known
        whole: IntArray = np.where(usable, steps, 0).astype(np.int64)
        if unusable := int((~usable).sum()):
            self.add_note(f"{unusable:,} rows have no step that is a whole number, or no value: left out.")
        for name, unread in self._unread.items():
            self.add_note(f"{name}: {len(unread):,} values are not numbers, such as {unread[0]}.")
        series = {
            name: self._in_order(whole, rows, columns)
            for label, of_label in self._by_label(np.flatnonzero(usable)).items()
            for name, rows in self._by_repeat(label, whole, self._merged(whole, of_label, columns)).items()
        }
        runs = {name: self._run(whole, rows, columns, last_seen) for name, rows in series.items()}
        first = next(iter(runs.values()))
        if len(runs) == 1:
            return first
        self.add_note(f"The file has {len(runs)} series, each of which is diagnosed: {', '.join(list(runs)[:8])}.")
        for name, one in runs.items():
            one.source = f"{self.source} ({printable(name, 60)})"
        return dataclasses.replace(first, source=self.source, parts=runs)

    def _run(self, whole: IntArray, rows: IntArray, columns: dict[str, Column], last_seen: int | None) -> Run:
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
        run.left_out, run.left_out_nonfinite = self._left_out, self._left_out_nonfinite
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

    def _by_label(self, rows: IntArray) -> dict[str, IntArray]:
        """Returns the rows of each series that a column tells apart, by its name; all rows if there is only one."""
        labels = [label for i, step in enumerate(self._steps) for label in self._labels.get(i) or [""] * len(step)]
        counted = collections.Counter(labels[row] for row in rows.tolist())
        names = [name for name, count in counted.items() if name and count >= MIN_SERIES_ROWS]
        if not 2 <= len(names) <= MAX_SERIES:
            return {"": rows}
        known = np.array([labels[row] if labels[row] in names else names[0] for row in rows.tolist()])
        return {name: rows[known == name] for name in names}

    def _by_repeat(self, name: str, steps: IntArray, rows: IntArray) -> dict[str, IntArray]:
        """Returns the rows of each series, if a step has several rows in a file that does not go back to it: that of
        another rank, or another part of the batch. The first, the second, ... row of each step make a series."""
        of_rows = steps[rows]
        if not self._is_unordered(of_rows):
            return {name: rows}
        order = np.argsort(of_rows, kind="stable")
        begins = np.append(True, np.diff(of_rows[order]) > 0)
        begin = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        repeat = np.empty(len(order), dtype=np.int64)
        repeat[order] = np.arange(len(order)) - begin
        several = int(repeat.max()) + 1
        if several > MAX_SERIES or (repeat > 0).sum() <= REPEATED * len(rows):
            return {name: rows}
        parts = {f"{name}{', ' if name else ''}row {i + 1} of each step": rows[repeat == i] for i in range(several)}
        return {part: found for part, found in parts.items() if len(found)}

    def _is_unordered(self, steps: IntArray) -> bool:
        return int((np.diff(steps) <= 0).sum()) > max(1, len(steps) // ROWS_PER_REVERSAL)

    def _in_order(self, steps: IntArray, rows: IntArray, columns: dict[str, Column]) -> IntArray:
        """Returns the rows with strictly increasing steps. If the run went back, the later of two rows of a step
        counts.
        """
        back = int((np.diff(steps[rows]) <= 0).sum())
        if not back:
            return rows
        if self._is_unordered(steps[rows]):
            self.add_note(
                f"The rows are unordered ({back:,} go back): sorted; of rows with the same step the last is used."
            )
            rows = rows[np.argsort(steps[rows], kind="stable")]
            is_last = np.append(np.diff(steps[rows]) > 0, True)
            self._left_out += int((~is_last).sum())
            self._left_out_nonfinite += int(_bad_rows(columns, rows[~is_last]).sum())
            last: IntArray = rows[is_last]
            return last
        later = np.minimum.accumulate(steps[rows][::-1])[::-1]
        kept = np.append(steps[rows][:-1] < later[1:], True)
        times = "once" if back == 1 else f"{back:,} times"
        self.add_note(f"The run went back {times}: {(~kept).sum():,} rows that were written again are left out.")
        self._left_out_nonfinite += int(_bad_rows(columns, rows[~kept]).sum())
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


def _as_written(rows: Iterable[tuple[int, int]], longest: Sequence[tuple[int, float]]) -> list[tuple[int, int]]:
    """Returns rows, by the count and the number of their step, in the order of the longest column; a row that it does
    not have follows the one before its step."""
    met = collections.Counter[int]()
    at: dict[int, list[tuple[int, int]]] = {}
    for i, (step, _) in enumerate(longest):
        bisect.insort(at.setdefault(met[step], []), (step, i))
        met[step] += 1

    def place(row: tuple[int, int]) -> tuple[int, int]:
        count, step = row
        known = at.get(count, [(0, len(longest))])
        before = bisect.bisect_right(known, (step, len(longest))) - 1
        return (known[before][1] if before >= 0 else -1), step

    return sorted(rows, key=place)


def _bad_rows(columns: Mapping[str, Column], rows: IntArray) -> BoolArray:
    """Returns which of these rows have a loss that is not finite."""
    losses = [columns[name].bad[rows] for name in ("loss", "eval_loss") if name in columns]
    found: BoolArray = np.any(losses, axis=0) if losses else np.zeros(len(rows), dtype=bool)
    return found


def _labels(values: Values) -> list[str]:
    """Returns the name of the series of each row; ``""`` where there is none."""
    if isinstance(values, Column):
        values = [value if given else None for value, given in zip(values.values, values.given, strict=True)]
    return ["" if value is None or value == "" else _label(value) for value in values]


def _label(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"rank {value}" if str(value).strip().isdigit() else printable(str(value), 60)


def _is_nonfinite(value: str | float) -> bool:
    try:
        return not math.isfinite(to_float(value) if isinstance(value, str) else value)
    except ValueError:
        return False


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
