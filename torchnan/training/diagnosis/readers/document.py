"""Reads JSON documents: trainer_state.json of Transformers, the history of Keras, and lists of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchnan.training.diagnosis.readers.column_names import match_columns
from torchnan.training.diagnosis.readers.encoded import open_log
from torchnan.training.diagnosis.readers.run_builder import RunBuilder
from torchnan.training.diagnosis.run import Run, RunError

MAX_BYTES = 2**29
_NESTED = ("log_history", "history", "log", "logs", "metrics", "data")

Rows = list[dict[str, Any]]


def read(path: Path, columns: Mapping[str, str]) -> Run:
    """Returns the run in a document: from its rows, or from a list of numbers for each column.

    Args:
        path: the file.
        columns: names in it that the user gives for columns of a run.

    Raises:
        RunError: it is not JSON, or it has neither rows nor columns.
    """
    if path.stat().st_size > MAX_BYTES:
        raise RunError(f"{path} is not the log of a run: it is JSON of more than {MAX_BYTES:,} bytes.")
    try:
        with open_log(path) as file:
            document = json.loads(file.read(MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not JSON: {error}.") from None
    builder = RunBuilder(str(path))
    if (rows := _rows_in(document)) is not None:
        _add_rows(rows, columns, builder)
    elif (table := _table_in(document)) is not None:
        _add_table(table, columns, builder)
    else:
        raise RunError(
            f"{path} is JSON, but not the log of a run: it has no list named log_history, no list of rows, and no "
            "lists of numbers by name."
        )
    return builder.build()


def _rows_in(document: Any) -> Rows | None:
    """Returns the rows of a document: a list of objects, objects by step, or one of these under a common name."""
    if isinstance(document, list):
        if document and all(isinstance(row, list) and len(row) == 3 for row in document):  # a scalar from TensorBoard
            return [dict(zip(("wall_time", "step", "loss"), row, strict=True)) for row in document]
        return [row for row in document if isinstance(row, dict)] or None
    if not isinstance(document, dict):
        return None
    for name in _NESTED:
        if isinstance(document.get(name), list | dict) and (nested := _rows_in(document[name])) is not None:
            return nested
    by_step = {key: row for key, row in document.items() if isinstance(row, dict) and key.isdecimal()}
    if by_step and len(by_step) == len(document):
        return [{"step": int(key), **row} for key, row in by_step.items()]
    return None


def _table_in(document: Any) -> dict[str, list[Any]] | None:
    """Returns the columns of a document: lists of numbers, or numbers by row, by name."""
    if not isinstance(document, dict):
        return None
    nested = [document[name] for name in _NESTED if isinstance(document.get(name), dict)]
    if (inner := next(filter(None, map(_table_in, nested)), None)) is not None:
        return inner
    table: dict[str, list[Any]] = {}
    for name, values in document.items():
        if isinstance(values, dict) and values and all(key.isdecimal() for key in values):  # written by pandas
            values = list(values.values())
        if isinstance(values, list) and values and all(type(v) in (int, float, str, type(None)) for v in values):
            table[name] = values
    return table or None


def _add_rows(rows: Rows, columns: Mapping[str, str], builder: RunBuilder) -> None:
    names = dict.fromkeys(name for row in rows for name in row)
    known = match_columns(names, columns)
    builder.set_aside(names, known, lambda name: [row.get(name) for row in rows])
    training = [
        name for name, column in known.items() if column.partition("#")[0] not in ("step", "epoch", "rank", "eval_loss")
    ]
    used = [name for name, column in known.items() if column not in ("step", "epoch", "rank")]
    kept = [row for row in rows if any(row.get(name) is not None for name in used)]
    values = {column: [row.get(name) for row in kept] for name, column in known.items()}
    steps = values.pop("step", None)
    if not values:
        return
    builder.add(steps, values)
    rest = sum(all(row.get(name) is None for name in training) for row in rows)
    if rest:
        builder.add_note(f"{rest:,} entries are not of the training, but of evaluations or its end.")


def _add_table(table: dict[str, list[Any]], columns: Mapping[str, str], builder: RunBuilder) -> None:
    known = match_columns(table, columns)
    builder.set_aside(table, known, table.__getitem__)
    rows = max((len(table[name]) for name, column in known.items() if column != "epoch"), default=0)
    values = {column: [*table[name], *[None] * rows][:rows] for name, column in known.items()}
    if rows:
        builder.add(values.pop("step", None), values)
