"""Reads CSV files: a header, and a row per step."""

from __future__ import annotations

import csv
import io
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchnan.config.text import printable
from torchnan.training.diagnosis.readers.column_names import match_columns
from torchnan.training.diagnosis.readers.encoded import open_log, to_float, without_decimal_comma
from torchnan.training.diagnosis.readers.run_builder import RunBuilder
from torchnan.training.diagnosis.run import Run

CHUNK = 5_000  # rows converted at a time
COMPANION = 0.9  # share of the losses that a column has a number beside, if it comes with the loss
SEPARATORS = ",;\t"


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
    """Returns the fields of each line."""
    if separator == " ":
        lines = (line.strip() for line in lines)
    return csv.reader(lines, delimiter=separator, skipinitialspace=separator == " ")


def _is_value(field: str) -> bool:
    if not field.strip():
        return True
    try:
        to_float(without_decimal_comma(field))
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
    with io.TextIOWrapper(open_log(path), encoding="utf-8", errors="replace", newline="") as file:
        first = file.readline(2**16)
        separator = _separator(first)
        header = next(_rows([first], separator), [])
        header = [name.strip() for name in header]
        runs = _runs_of(header)
        known = {label: match_columns(names, columns) for label, names in runs.items()}
        read_names = {name for columns_of_run in known.values() for name in columns_of_run}
        for chunk in _chunks(_rows(file, separator), len(header), builder):
            found: dict[str, Sequence[str]] = dict(zip(header, zip(*chunk, strict=True), strict=True))
            for name in header:
                if name not in read_names:
                    builder.check_unread(name, found[name])
            for label in runs:
                _add(builder, found, known[label], label, separator)
    if builder.rows:  # a line that only looks like a header names no numbers
        builder.add_candidates(name for name in header if name and name not in read_names)
    return builder.build()


def _runs_of(header: Sequence[str]) -> dict[str, list[str]]:
    """Returns the names of each run in an export of Weights & Biases, which puts the name of the run before that of the
    column; all names if there are not several runs with a loss."""
    by_run: dict[str, list[str]] = {}
    for name in header:
        by_run.setdefault(name.rpartition(" - ")[0], []).append(name)
    shared = by_run.pop("", [])
    runs = {label: [*shared, *names] for label, names in by_run.items() if "loss" in match_columns(names).values()}
    return runs if len(runs) > 1 else {"": list(header)}


def _add(
    builder: RunBuilder, found: Mapping[str, Sequence[str]], known: Mapping[str, str], label: str, separator: str
) -> None:
    """Adds the rows of a run, and counts those in which nothing but the step is written."""
    values: dict[str, Sequence[Any]] = {column: found[name] for name, column in known.items()}
    if separator != ",":  # then a comma may be a decimal point, but not in a step
        for column in values.keys() - {"step", "rank", "batch_digest"}:
            if any("," in field for field in values[column]):
                values[column] = [without_decimal_comma(field) for field in values[column]]
    rows = len(next(iter(found.values())))
    own = [values[column] for column in values.keys() - {"step", "epoch", "rank"}]
    if label:  # a row of another run
        kept = [i for i in range(rows) if any(column[i].strip() for column in own)]
        values = {column: [fields[i] for i in kept] for column, fields in values.items()}
        values["rank"] = [label] * len(kept)
        rows = len(kept)
    elif own:
        others = [fields for name, fields in found.items() if known.get(name) not in ("step", "epoch", "rank")]
        builder.leave_out(rows=_absent(values.get("loss", own[0]), others))
    steps = values.pop("step", None)
    if rows:
        builder.add(steps, values or {"loss": (None,) * rows})


def _absent(loss: Sequence[str], others: Sequence[Sequence[str]]) -> int:
    """Returns how many rows have no loss although one is due: nothing but a step, or the numbers that come with a loss.
    pandas writes a NaN as nothing."""
    has_loss = [bool(field.strip()) for field in loss]
    with_loss = sum(has_loss)
    due = [False] * len(loss)
    for fields in others:
        filled = [bool(field.strip()) for field in fields]
        together = sum(map(operator.and_, filled, has_loss))
        if 2 * with_loss > len(loss) and together > COMPANION * with_loss:
            due = list(map(operator.or_, due, filled))
    empty = (not any(map(str.strip, fields)) for fields in zip(*others, strict=True))
    return sum((is_due or is_empty) and not has for is_due, is_empty, has in zip(due, empty, has_loss, strict=True))


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
            builder.leave_out()
            example = example or str(error)
        whole = [row for row in chunk if len(row) == width]
        others = [row for row in chunk if row and len(row) != width] if len(whole) < len(chunk) else []
        damaged += len(others)
        for row in others:
            builder.leave_out(" ".join(row)[:10_000])
        example = example or (f"{len(others[0])} fields instead of {width}" if others else "")
        if whole:
            yield whole
    if damaged:
        what = "lines are not rows" if damaged > 1 else "line is not a row"
        builder.add_note(f"{damaged:,} {what}: {printable(example, 100)}.")
