"""Reads the log of torchnan.Monitor with its older parts, and other files with a JSON object per line."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchnan.config.text import printable
from torchnan.training.diagnosis.readers.column_names import is_loss, match_columns, normal
from torchnan.training.diagnosis.readers.encoded import open_log
from torchnan.training.diagnosis.readers.run_builder import RunBuilder, Values
from torchnan.training.diagnosis.run import GROUPED, Run, RunError

BLOCK = 2**20  # bytes read at a time
MAX_LINE_BYTES = 2**20  # bytes: the longest row
EVENTS = frozenset(("torchnan", "finding", "rerun", "guard_action", "verdict", "forecast"))
MAX_EVENTS = 10_000


def read(path: Path, columns: Mapping[str, str]) -> Run:
    """Returns the run in all parts of a log, the oldest first.

    Args:
        path: the newest part.
        columns: names in it that the user gives for columns of a run.

    Raises:
        RunError: no line is a JSON object.
    """
    reading = _LogReader(str(path), columns)
    for part in _parts(path):
        reading.read(part)
    if not reading.objects:
        raise RunError(f"{path} is not a log: none of its {reading.lines:,} lines is a JSON object.")
    return reading.finish()


def _parts(path: Path) -> list[Path]:
    """Returns ``run.jsonl.2``, ``run.jsonl.1``, ``run.jsonl``: the higher the number, the older the part."""
    numbered = {
        int(number): part
        for part in path.parent.glob(f"{_literal(path.name)}.*")
        if (number := part.name[len(path.name) + 1 :]).isascii() and number.isdigit() and part.is_file()
    }
    return [*(numbered[i] for i in sorted(numbered, reverse=True)), path]


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


class _LogReader:
    """Parses lines to objects, and adds them to a run as rows and events."""

    def __init__(self, source: str, columns: Mapping[str, str]) -> None:
        try:
            import orjson
        except ImportError:
            raise ImportError("reading this log needs orjson: pip install torchnan[diagnose]") from None
        self._loads = orjson.loads
        self._builder = RunBuilder(source)
        self._named = columns
        self._groups: list[str] = []
        self.lines = self.objects = 0
        self._damaged: list[str] = []
        self._many_damaged = 0

    def read(self, part: Path) -> None:
        """Reads one part."""
        with open_log(part) as file:
            for lines, ended in _lines(file):
                self._add(lines, ended, part.name)

    def finish(self) -> Run:
        """Returns the run."""
        if self._many_damaged:
            are_none = "lines are not JSON objects" if self._many_damaged > 1 else "line is not a JSON object"
            many = f"{self._many_damaged:,} {are_none}"
            self._builder.add_note(f"{many}: {'; '.join(self._damaged)}.")
        return self._builder.build()

    def _add(self, lines: list[bytes], ended: bool, part: str) -> None:
        objects = self._at_once(lines)
        if objects is None:
            objects = self._one_by_one(lines, ended, part)
        self.lines += len(lines)
        rows: list[dict[str, Any]] = []
        for found in objects:
            if type(found) is not dict:
                self._damage(f"a {type(found).__name__} where an object should be", str(found)[:10_000])
            elif EVENTS.isdisjoint(found):
                rows.append(found)
            else:
                self._add_rows(rows)
                rows = [found] if any(is_loss(normal(name)) for name in found) else []  # of another program
                self._event(found)
        self.objects += len(objects)
        self._add_rows(rows)

    def _at_once(self, lines: list[bytes]) -> list[Any] | None:
        """Parses all lines as one array, which is twice as fast; ``None`` if a line may not be a complete object."""
        if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
            return None
        try:
            objects: list[Any] = self._loads(b"[" + b",".join(lines) + b"]")
        except ValueError:
            return None
        return objects if len(objects) == len(lines) else None

    def _one_by_one(self, lines: list[bytes], ended: bool, part: str) -> list[Any]:
        objects: list[Any] = []
        for number, line in enumerate(lines, self.lines + 1):
            if not line or line.isspace():
                continue
            try:
                objects.append(self._loads(line))
            except ValueError as error:
                if (found := self._other_json(line)) is not None:
                    objects.append(found)
                    continue
                is_cut = not ended and number == self.lines + len(lines)
                reason = f"the last line of {part} is incomplete" if is_cut else f"line {number:,}: {error}"
                self._damage(reason, line[:10_000].decode("utf-8", "replace"))
        return objects

    def _damage(self, reason: str, text: str) -> None:
        self._many_damaged += 1
        self._builder.leave_out(text)
        self._damaged += [printable(reason, 100)][: 3 - len(self._damaged)]

    def _other_json(self, line: bytes) -> Any:
        """Parses the output of Python's json module, with NaN and Infinity."""
        if b"NaN" not in line and b"Infinity" not in line:
            return None
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None

    def _event(self, found: dict[str, Any]) -> None:
        builder = self._builder
        if found.get("torchnan") == "run":
            self._groups = [str(name) for name in found.get("groups") or [] if isinstance(name, str)]
            dtype = found.get("dtype")
            builder.dtype = dtype if isinstance(dtype, str) else builder.dtype
            if not found.get("continued"):
                builder.add_start()
        finding, rerun = found.get("finding"), found.get("rerun")
        if isinstance(finding, dict) and isinstance(found.get("step"), int) and len(builder.findings) < MAX_EVENTS:
            builder.findings.append({"step": found["step"], "finding": finding})
        is_action = isinstance(found.get("guard_action"), str) and isinstance(found.get("step"), int)
        if is_action and len(builder.actions) < MAX_EVENTS:
            builder.actions.append({"step": found["step"], "action": found["guard_action"]})
        if isinstance(rerun, dict) and isinstance(rerun.get("step"), int) and len(builder.reruns) < MAX_EVENTS:
            builder.reruns.append(rerun)

    def _add_rows(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        if nested := _nested_names(rows):
            rows = [_flat(row, nested) for row in rows]
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        known = match_columns(names, self._named)
        self._builder.set_aside(names, known, lambda name: _values(rows, name))
        losses = [name for name, column in known.items() if column.partition("#")[0] == "loss"]
        self._builder.leave_out(rows=sum(any(row.get(name, 0) is None for name in losses) for row in rows))
        columns: dict[str, Any] = {column: _values(rows, name) for name, column in known.items()}
        steps = columns.pop("step", None)
        for name in GROUPED:
            if name in columns:
                columns.update(self._of_groups(name, columns.pop(name)))
        first = self._builder.rows
        self._builder.add(steps, columns or {"loss": [None] * len(rows)})
        for i, row in enumerate(rows):
            if "headroom" in row:
                self._headroom(first + i, row["headroom"])

    def _of_groups(self, name: str, values: list[Any]) -> dict[str, Values]:
        """Splits lists of one value per parameter group into columns."""
        try:
            numbers = np.array(values, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            numbers = np.empty(0)
        if numbers.ndim == 2 and not np.isnan(numbers).any():
            return {f"{name}/{self._group(i)}": numbers[:, i] for i in range(numbers.shape[1])}
        width = max((len(value) for value in values if type(value) is list), default=0)
        if not width:
            return {name: values}
        padded = [[*value, *[None] * width][:width] if type(value) is list else [value] * width for value in values]
        return {f"{name}/{self._group(i)}": [value[i] for value in padded] for i in range(width)}

    def _group(self, number: int) -> str:
        return self._groups[number] if number < len(self._groups) else str(number)

    def _headroom(self, row: int, found: Any) -> None:
        if not isinstance(found, dict):
            return
        for module, value in found.items():
            if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
                largest = value[1]
                if isinstance(largest, int | float):
                    self._builder.add_headroom(row, module, value[0], float(largest))


def _nested_names(rows: list[dict[str, Any]]) -> set[str]:
    """Returns the names whose values are objects in all rows that have them."""
    nested = {name for row in rows for name, value in row.items() if type(value) is dict} - {"headroom"}
    return {name for name in nested if all(type(row.get(name, {})) is dict for row in rows)}


def _flat(row: dict[str, Any], nested: set[str]) -> dict[str, Any]:
    """Returns a row with nested objects as names with a slash: ``{"train": {"loss": 1}}`` becomes ``{"train/loss":
    1}``."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in nested and type(value) is dict:
            flat.update({f"{name}/{inner}": number for inner, number in value.items()})
        else:
            flat[name] = value
    return flat


def _values(rows: list[dict[str, Any]], name: str) -> list[Any]:
    try:
        return list(map(operator.itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def _lines(file: Any) -> Iterator[tuple[list[bytes], bool]]:
    """Yields blocks of lines, and whether the last line of the block is complete; truncates lines that are too long."""
    rest = b""
    while block := file.read(BLOCK):
        rest += block
        lines = rest.split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_LINE_BYTES:
            rest = rest[:1]
        yield [line if len(line) <= MAX_LINE_BYTES else line[:1] for line in lines], True
    if rest:
        yield [rest], False
