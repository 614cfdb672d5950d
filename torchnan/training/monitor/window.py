"""Keeps the last rows of a run in the arrays that a diagnosis reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from torchnan.training.diagnosis import Column, Digests, Headroom, Run
from torchnan.training.diagnosis.run import COLUMNS, GROUPED
from torchnan.training.monitor.row import Row


class Window:
    """A bounded number of rows, in arrays twice as long: rows are moved to the front only once per window.

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
        return self._end - self._first

    def add(self, row: Row) -> None:
        """Adds a row; drops rows from its step on, because the run went back."""
        self.rewind_to(row.step)
        if self._end == len(self._step):
            self._move_to_the_front()
        at = self._end
        self._end += 1
        self._first = max(self._first, self._end - self._rows)
        self._step[at] = row.step
        for name in COLUMNS:
            value = getattr(row, name)
            if isinstance(value, list | tuple):  # of the parameter groups
                value = max(value, default=None)
            self._put(name, at, None if value is None else float(value))
        for grouped in GROUPED:
            values = getattr(row, grouped)
            for i, group in enumerate(self._groups):
                self._put(f"{grouped}/{group}", at, values[i] if values and i < len(values) else None)
        self._digested[at] = row.batch_digest is not None
        self._digest[at] = int(row.batch_digest, 16) if row.batch_digest is not None else 0
        for module, (dtype, largest) in (row.headroom or {}).items():
            self._headroom.setdefault((module, dtype), []).append((row.step, largest))

    def set_skipped(self, skipped: bool) -> None:
        """Sets whether the newest step was skipped."""
        self._put("skipped", self._end - 1, float(skipped))

    def rewind_to(self, step: int) -> None:
        """Drops the rows from a step on."""
        if len(self) == 0 or self._step[self._end - 1] < step:
            return
        while len(self) and self._step[self._end - 1] >= step:
            self._end -= 1
        self._prune_side_tables(lambda seen: seen < step)

    def run(self) -> Run:
        """Returns the window as a :class:`Run`. It shares memory with the window: read it before adding rows."""
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

    def _put(self, name: str, at: int, value: float | None) -> None:
        self._given[name][at] = value is not None
        self._values[name][at] = math.nan if value is None else value

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
