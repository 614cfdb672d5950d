"""Reads CSV files: a header, and a row per step."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchnan.config.text import printable
from torchnan.training.diagnosis.readers.column_names import match_columns
from torchnan.training.diagnosis.readers.run_builder import RunBuilder
from torchnan.training.diagnosis.run import Run

CHUNK = 5_000  # rows converted at a time
SEPARATORS = ",;\t"
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")


def is_table(lines: list[str]) -> bool:
    """Returns whether lines are a header and rows with the same number of fields, most of them numbers or empty."""
    separator = _separator(lines[0])
    rows = [next(_rows([line], separator), []) for line in lines[:4]]
    header, rest = rows[0], rows[1:]
    if not header or any(_is_value(name) for name in header if name.strip()) or len(set(header)) < len(header):
        return False
    if not rest:
        return len(header) > 1 or match_columns(header) != {}
    alike = [row for row in rest if len(row) == len(header)]
    numbers = sum(_is_value(field) for row in alike for field in row)
    return bool(alike) and 2 * numbers >= sum(map(len, alike))


def _separator(header: str) -> str:
    """Returns the separator of the fields: spaces if there is no other."""
    most = max(SEPARATORS, key=header.count)
    return most if most in header or " " not in header.strip() else " "


def _rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Returns the fields of each line. If commas are not the separator, a comma may be a decimal point."""
    if separator == " ":
        lines = (line.strip() for line in lines)
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=separator == " ")
    if separator == ",":
        return rows
    return ([field.replace(",", ".") if _DECIMAL_COMMA.fullmatch(field) else field for field in row] for row in rows)


def _is_value(field: str) -> bool:
    if not field.strip():
        return True
    try:
        float(field)
    except ValueError:
        return False
    return True


def read(path: Path, columns: Mapping[str, str]) -> Run:
    """Returns the run in a table separated by commas, semicolons or tabs. Without a step column, rows count from 0.

    Args:
        path: the file.
        columns: names in it that the user gives for columns of a run.

    """
    builder = RunBuilder(str(path))
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        first = file.readline(2**16)
        separator = _separator(first)
        header = next(_rows([first], separator), [])
        header = [name.strip() for name in header]
        known = match_columns(header, columns)
        for chunk in _chunks(_rows(file, separator), len(header), builder):
            found = dict(zip(header, zip(*chunk, strict=True), strict=True))
            values: dict[str, Sequence[Any]] = {known[name]: column for name, column in found.items() if name in known}
            steps = values.pop("step", None)
            builder.add(steps, values or {"loss": (None,) * len(chunk)})
    if builder.rows:  # a line that only looks like a header names no numbers
        builder.add_candidates(name for name in header if name and name not in known)
    return builder.build()


def _chunks(lines: Iterator[list[str]], width: int, builder: RunBuilder) -> Iterator[list[list[str]]]:
    """Yields rows that have as many fields as the header."""
    damaged, example, more = 0, "", True
    while more:
        chunk: list[list[str]] = []
        try:
            chunk.extend(itertools.islice(lines, CHUNK))
            more = bool(chunk)
        except csv.Error as error:  # a field of a hundred thousand letters; the rows before it are already in the chunk
            damaged += 1
            example = example or str(error)
        whole = [row for row in chunk if len(row) == width]
        others = [row for row in chunk if row and len(row) != width] if len(whole) < len(chunk) else []
        damaged += len(others)
        example = example or (f"{len(others[0])} fields instead of {width}" if others else "")
        if whole:
            yield whole
    if damaged:
        what = "lines are not rows" if damaged > 1 else "line is not a row"
        builder.add_note(f"{damaged:,} {what}: {printable(example, 100)}.")
