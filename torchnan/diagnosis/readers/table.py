"""Reads CSV files: a header, and a row per step."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchnan.config.text import brief, printable
from torchnan.diagnosis.readers.column_names import COLUMN_ALIASES, match_columns
from torchnan.diagnosis.readers.errors import RunError
from torchnan.diagnosis.readers.run_builder import RunBuilder
from torchnan.diagnosis.run import Run

CHUNK = 5_000  # rows converted at a time


def read(path: Path, columns: Mapping[str, str]) -> Run:
    """Returns the run in a table separated by commas, semicolons or tabs. Without a step column, rows count from 0.

    Args:
        path: the file.
        columns: names in it that the user gives for columns of a run.

    Raises:
        RunError: the header has no known column.
    """
    builder = RunBuilder(str(path))
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        first = file.readline(2**16)
        separator = max(",;\t", key=first.count)
        header = next(csv.reader([first], delimiter=separator), [])
        known = match_columns(header, columns)
        if not set(known.values()) - {"step"}:
            raise RunError(
                f"{path} is not the log of a run: its first line names no column that is known, but "
                f"{brief(first[:100])}. Known are {', '.join(COLUMN_ALIASES)}; --column loss=NAME says which column "
                "is the loss."
            )
        for chunk in _chunks(csv.reader(file, delimiter=separator), len(header), builder):
            found = dict(zip(header, zip(*chunk, strict=True), strict=True))
            values = {known[name]: column for name, column in found.items() if name in known}
            counted = range(builder.rows, builder.rows + len(chunk))
            builder.add(values.pop("step", counted), values)
    if "step" not in known.values():
        builder.add_note("There is no column of steps: rows are counted from 0.")
    return builder.build()


def _chunks(lines: Iterator[list[str]], width: int, builder: RunBuilder) -> Iterator[list[list[str]]]:
    """Yields rows that have as many fields as the header."""
    damaged, example, more = 0, "", True
    while more:
        chunk: list[list[str]] = []
        try:
            chunk.extend(itertools.islice(lines, CHUNK))
            more = bool(chunk)
        except csv.Error as error:  # a field of a hundred thousand letters; the rows before it are in the chunk
            damaged += 1
            example = example or str(error)
        whole = [row for row in chunk if len(row) == width]
        others = [row for row in chunk if row and len(row) != width] if len(whole) < len(chunk) else []
        damaged += len(others)
        example = example or (f"{len(others[0])} fields instead of {width}" if others else "")
        if whole:
            yield whole
    if damaged:
        builder.add_note(f"{damaged:,} line{'s are' if damaged > 1 else ' is'} no row: {printable(example, 100)}.")
