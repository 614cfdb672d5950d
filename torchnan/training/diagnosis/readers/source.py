"""Detects the format of a path and reads it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from torchnan.config import log_kind
from torchnan.config.text import command_line
from torchnan.training.diagnosis.readers import document, event_files, mlflow, monitor_log, table, text
from torchnan.training.diagnosis.readers.column_names import AskedColumns
from torchnan.training.diagnosis.readers.encoded import open_log
from torchnan.training.diagnosis.run import Run, RunError

START = 65536  # bytes that are read to detect a format

FORMATS = (
    "These formats can be read: the log of torchnan.Monitor, JSON Lines, CSV files with a header, TensorBoard's event "
    "files, "
    "trainer_state.json of Transformers, the history of Keras as JSON, the metrics of MLflow, and text in which "
    "numbers have names ('loss 2.3', 'loss: 2.3', 'loss=2.3'), as most programs print."
)


def read(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] = MappingProxyType({}),
    patterns: Sequence[str] = (),
) -> Run:
    """Reads a run in any known format. Damaged parts are skipped and mentioned in the run's ``notes``.

    Args:
        path: a file, or a folder with one.
        columns: names in the file for columns of a run, ``{"loss": "train/total_loss"}``, where they are not known.
        patterns: regular expressions with groups named by columns, for a text whose numbers have no names.

    Raises:
        OptionError: a pattern is invalid, or there is no column of a name in ``columns``.
        RunError: the file is not a run, or an empty one.
        OSError: the file cannot be opened.
        ImportError: a package is not installed; the message names it.
    """
    found, asked = _resolve(Path(path)), AskedColumns(columns)
    try:
        with _gc_paused():
            run = _with_other_ranks(found, _read(found, asked, patterns), asked, patterns)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RunError(f"{found} is a damaged gzip file: {error}.") from None
    asked.check(found)
    if not len(run) and run.candidates:
        raise RunError(no_loss(run))
    if not len(run):
        raise RunError(f"{found} has no steps. {' '.join(run.notes)} {FORMATS}")
    return run


def _with_other_ranks(path: Path, run: Run, columns: Mapping[str, str], patterns: Sequence[str]) -> Run:
    """Returns a run with the logs beside it as parts that other ranks of a Monitor have written:
    ``run.rank-1.jsonl``."""
    parts = run.parts or {"rank 0": run}
    ranks: dict[int, Path] = {}
    for other in path.parent.iterdir():
        named = re.fullmatch(r"(.*)\.rank-(\d{1,9})", other.stem, re.DOTALL)
        is_one = named and named[1] == path.stem and other.suffix == path.suffix and other.is_file()
        if named and is_one and other.stat().st_size:
            ranks[int(named[2])] = other
    for rank, other in sorted(ranks.items()):
        parts = {**parts, f"rank {rank}": _read(other, columns, patterns)}
    return dataclasses.replace(run, parts=parts) if ranks else run


def no_loss(run: Run) -> str:
    """Returns the message for a run without a loss, with the names that the source has instead."""
    candidates = f"Its other numbers are {', '.join(run.candidates)}. " if run.candidates else ""
    return f"{run.source} has no loss. {candidates}--column loss=NAME says which number is the loss."


@contextlib.contextmanager
def _gc_paused() -> Iterator[None]:
    """Pauses garbage collection, which would take longer than reading: there are millions of rows, and no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _resolve(path: Path) -> Path:
    """Returns the file to read in a folder; a folder of event files is returned itself."""
    if not path.is_dir():
        if not stat.S_ISREG(path.stat().st_mode):
            raise RunError(f"{path} is neither a regular file nor a folder. {FORMATS}")
        return path
    if (events := event_files.folder_in(path)) is not None:
        return events
    if (metrics := mlflow.run_in(path)) is not None:
        return metrics
    logs = [path / name for name in ("run.jsonl", "trainer_state.json", "files/output.log")]
    logs += [one for pattern in ("*.jsonl", "*.csv", "*.json", "*.log", "*.txt") for one in sorted(path.glob(pattern))]
    logs += sorted(path.glob("checkpoint-*/trainer_state.json"), key=lambda state: state.stat().st_mtime, reverse=True)
    known = [log for log in logs if log.is_file()]
    if not known:
        raise RunError(f"there is no run in the folder {path}. {FORMATS}")
    return known[0]


def _read(path: Path, columns: Mapping[str, str], patterns: Sequence[str]) -> Run:
    """Calls the reader of the format, which the content decides, not the name."""
    if path.is_dir():
        return mlflow.read(path, columns) if path.name == "metrics" else event_files.read(path, columns)
    with open_log(path) as file:
        start = file.read(START)
    if not start.strip():
        raise RunError(f"{path} is empty. {FORMATS}")
    refuse_other_log(path, start)
    if _is_event_file(start):
        return event_files.read(path, columns)
    if patterns:
        return text.read(path, columns, patterns)
    lines = [line for line in start.decode("utf-8-sig", "replace").splitlines() if line.strip()]
    if lines[0].lstrip()[:1] in "{[" and (reader := _json_reader(path, lines)) is not None:
        return reader(path, columns)
    if b"\0" in start:
        raise RunError(f"{path} is a binary file of an unknown kind. {FORMATS}")
    if table.is_table(lines):
        return table.read(path, columns)
    return text.read(path, columns)


def _json_reader(path: Path, lines: list[str]) -> Callable[[Path, Mapping[str, str]], Run] | None:
    """Returns the reader of JSON: of a document, or of an object in each line; ``None`` for a text that only starts
    like one, as with a dict of Python or with ``[INFO]``."""
    first = lines[0].strip()
    is_object = first.startswith("{") and _is_json(first)
    if is_object and (len(lines) > 1 or log_kind.of(first.encode()) is not None):
        return monitor_log.read
    begins_document = first in ("{", "[") or re.match(r'[\[{]\s*(?:["{\[\d-]|$)', first) is not None
    if is_object:  # the only line
        found = json.loads(first)
        is_row = not monitor_log.EVENTS.isdisjoint(found) or not any(isinstance(v, dict | list) for v in found.values())
        return monitor_log.read if is_row and path.suffix != ".json" else document.read
    if not begins_document:
        return monitor_log.read if first.startswith("{") and not first.startswith("{'") else None
    # several lines, of which the first is damaged
    if first.startswith("{") and sum(line.startswith("{") for line in lines) > 1:
        return monitor_log.read
    return document.read if not first.startswith("[") or _is_json_start(first) else None


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_json_start(line: str) -> bool:
    """Returns whether a line that starts with a bracket starts a JSON list, unlike a text such as ``[2024-01-01]``."""
    try:
        _, end = json.JSONDecoder().raw_decode(line)
    except (ValueError, RecursionError):  # it continues in the next line
        return re.match(r"\[\s*(?:$|[\[{\"]|-?[\d.]+(?:[eE][-+]?\d+)?\s*,?\s*$)", line) is not None
    return line[end:].strip() in ("", ",")


def _is_event_file(start: bytes) -> bool:
    """Returns whether a file starts like a record of TensorFlow: its length, and then a version "brain.Event:2"."""
    return b"brain.Event:" in start[:64]


def refuse_other_log(path: Path, start: bytes) -> None:
    """Raises RunError for a torchnan log of findings or bad steps, which is not a run."""
    kind = log_kind.of(start)
    if kind in ("findings", "recovery"):
        raise RunError(f"{path} is {log_kind.NAMES[kind]}, not of a run: use `{command_line('show', str(path))}`.")
