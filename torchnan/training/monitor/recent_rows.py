"""Keeps the last rows of a run in the arrays that a diagnosis reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchnan.training.diagnosis import Column, Digests, Headroom, Run
from torchnan.training.diagnosis.run import COLUMNS, GROUPED
from torchnan.training.monitor.row import Row

MAX_WAITING = 50  # rows that are not in the arrays yet; no more than the smallest window has


class RecentRows:
    """A bounded number of rows, in arrays twice as long: rows are moved to the front only once per window. New rows
    wait, and enter the arrays many at once.

    Args:
        rows: maximum number of rows.
        dtype: dtype that the model computes in.
        groups: names of the parameter groups.
    """

    def __init__(self, rows: int, dtype: str | None, groups: list[str]) -> None:
        self._rows = rows
        self._dtype = dtype
        self._groups = groups
        self._first = self._end = 0
        self._waiting: list[Row] = []
        self._newest = -1  # step of the newest row
        room = 2 * rows
        self._step = np.zeros(room, dtype=np.int64)
        self._values = {name: np.full(room, np.nan) for name in COLUMNS}
        self._given = {name: np.zeros(room, dtype=bool) for name in COLUMNS}
        for grouped in GROUPED:
            for group in groups:
                self._values[f"{grouped}/{group}"] = np.full(room, np.nan)
                self._given[f"{grouped}/{group}"] = np.zeros(room, dtype=bool)
        self._digest = np.zeros(room, dtype=np.uint64)
        self._digested = np.zeros(room, dtype=bool)
        self._headroom: dict[tuple[str, str], list[tuple[int, float]]] = {}
        self.findings: list[dict[str, Any]] = []  # as in Run
        self.reruns: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return min(self._rows, self._end - self._first + len(self._waiting))

    def add(self, row: Row) -> None:
        """Adds a row; drops rows from its step on, because the run went back."""
        if row.step <= self._newest:
            self._rewind_to(row.step)
        self._newest = row.step
        self._waiting.append(row)
        if len(self._waiting) == MAX_WAITING:
            self._settle()

    def set_skipped(self, skipped: bool) -> None:
        """Sets whether the newest step was skipped."""
        if self._waiting:
            self._waiting[-1].skipped = skipped
        elif len(self):
            self._put("skipped", slice(self._end - 1, self._end), [float(skipped)])

    def _rewind_to(self, step: int) -> None:
        """Drops the rows from a step on."""
        self._settle()
        while len(self) and self._step[self._end - 1] >= step:
            self._end -= 1
        self._prune_side_tables(lambda seen: seen < step)

    def _settle(self) -> None:
        """Moves the waiting rows into the arrays."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if self._end + len(waiting) > len(self._step):
            self._move_to_the_front()
        at = slice(self._end, self._end + len(waiting))
        self._end = at.stop
        self._first = max(self._first, self._end - self._rows)
        self._step[at] = [row.step for row in waiting]
        for name in COLUMNS:
            values = [getattr(row, name) for row in waiting]
            if name in GROUPED:
                values = [max(of_groups, default=None) if of_groups else None for of_groups in values]
            self._put(name, at, values)
        for grouped in GROUPED:
            lists = [getattr(row, grouped) or () for row in waiting]
            for i, group in enumerate(self._groups):
                self._put(f"{grouped}/{group}", at, [values[i] if i < len(values) else None for values in lists])
        self._digested[at] = [row.batch_digest is not None for row in waiting]
        self._digest[at] = [int(row.batch_digest or "0", 16) for row in waiting]
        for row in waiting:
            for module, (dtype, largest) in (row.headroom or {}).items():
                self._headroom.setdefault((module, dtype), []).append((row.step, largest))

    def run(self) -> Run:
        """Returns the window as a :class:`Run`. It shares memory with the window: read it before adding rows."""
        self._settle()
        rows = slice(self._first, self._end)
        columns = {name: Column(self._values[name][rows], self._given[name][rows]) for name in self._given}
        oldest = int(self._step[self._first]) if len(self) else 0
        self._prune_side_tables(lambda seen: seen >= oldest)
        return Run(
            self._step[rows],
            {name: columns[name] for name in COLUMNS if columns[name].given.any()},
            {grouped: self._by_group(columns, grouped) for grouped in GROUPED},
            Digests(self._digest[rows], self._digested[rows]),
            [
                Headroom(module, dtype, np.array([s for s, _ in seen], np.int64), np.array([v for _, v in seen]))
                for (module, dtype), seen in self._headroom.items()
            ],
            self.findings,
            self.reruns,
            dtype=self._dtype,
            source="live",
        )

    def _put(self, name: str, at: slice, values: Sequence[float | None]) -> None:
        self._given[name][at] = [value is not None for value in values]
        self._values[name][at] = values  # None becomes NaN

    def _move_to_the_front(self) -> None:
        kept = slice(self._first, self._end)
        for array in (self._step, *self._values.values(), *self._given.values(), self._digest, self._digested):
            array[: self._end - self._first] = array[kept].copy()
        self._first, self._end = 0, self._end - self._first

    def _by_group(self, columns: dict[str, Column], grouped: str) -> dict[str, Column]:
        by_name = {group: columns[f"{grouped}/{group}"] for group in self._groups}
        return {group: column for group, column in by_name.items() if column.given.any()}

    def _prune_side_tables(self, is_kept: Callable[[int], bool]) -> None:
        kept = {key: [at for at in values if is_kept(at[0])] for key, values in self._headroom.items()}
        self._headroom = {key: values for key, values in kept.items() if values}
        self.findings = [line for line in self.findings if is_kept(line["step"])]
        self.reruns = [line for line in self.reruns if is_kept(line["step"])]
