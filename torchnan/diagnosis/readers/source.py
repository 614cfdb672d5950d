"""Detects the format of a path and reads it."""

from __future__ import annotations

import contextlib
import gc
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from torchnan.config import log_kind
from torchnan.config.text import command_line
from torchnan.diagnosis.readers.errors import RunError
from torchnan.diagnosis.run import Run

FORMATS = (
    "Readable are: the log of torchnan.Monitor, a CSV file with a header (step, loss, grad_norm, lr, loss_scale, "
    "weight_norm, batch_digest; what is missing is not needed), TensorBoard event files or their folder, and the "
    "trainer_state.json of Transformers."
)


def read(path: str | os.PathLike[str], columns: Mapping[str, str] = MappingProxyType({})) -> Run:
    """Reads a run in any known format. Damaged parts are skipped and mentioned in the run's ``notes``.

    Args:
        path: a file, or a folder with one.
        columns: names in the file for columns of a run, ``{"loss": "train/total_loss"}``, where they are not known.

    Raises:
        RunError: it is not a run, or an empty one.
        OSError: it cannot be opened.
        ImportError: a package is not installed; the message names it.
    """
    found = _resolve(Path(path))
    with _gc_paused():
        run = _read(found, columns)
    if not len(run):
        raise RunError(f"{found} has no steps. {' '.join(run.notes)} {FORMATS}")
    return run


@contextlib.contextmanager
def _gc_paused() -> Iterator[None]:
    """Pauses garbage collection, which would take longer than reading: there are millions of rows, none part of a
    cycle.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _resolve(path: Path) -> Path:
    """Returns the file that a folder stands for; a folder of event files stands for itself."""
    if not path.is_dir():
        if not stat.S_ISREG(path.stat().st_mode):
            raise RunError(f"{path} is neither a regular file nor a folder. {FORMATS}")
        return path
    if _events_in(path):
        return path
    logs = [path / "run.jsonl", path / "trainer_state.json", *sorted(path.glob("*.jsonl")), *sorted(path.glob("*.csv"))]
    logs += sorted(path.glob("checkpoint-*/trainer_state.json"), key=lambda state: state.stat().st_mtime, reverse=True)
    known = [log for log in logs if log.is_file()]
    if not known:
        raise RunError(f"there is no run in the folder {path}. {FORMATS}")
    return known[0]


def _events_in(path: Path) -> bool:
    return any("tfevents" in name for name in os.listdir(path))


def _read(path: Path, columns: Mapping[str, str]) -> Run:
    """Calls the reader of the format; each is imported on use, because event files need another package."""
    if path.is_dir() or "tfevents" in path.name:
        from torchnan.diagnosis.readers import event_files

        return event_files.read(path, columns)
    with open(path, "rb") as file:
        start = file.read(65536)
    if not start.strip():
        raise RunError(f"{path} is empty. {FORMATS}")
    refuse_other_log(path, start)
    if start.lstrip()[:1] in b"{[":
        from torchnan.diagnosis.readers import monitor_log, trainer_state

        is_state = path.suffix == ".json" or b'"log_history"' in start
        return trainer_state.read(path) if is_state else monitor_log.read(path, columns)
    if b"\0" in start:
        raise RunError(f"{path} is a binary file of a kind that is not known. {FORMATS}")
    from torchnan.diagnosis.readers import table

    return table.read(path, columns)


def refuse_other_log(path: Path, start: bytes) -> None:
    """Raises RunError for a log of torchnan's that holds findings or bad steps, and no run."""
    kind = log_kind.of(start)
    if kind in ("findings", "recovery"):
        raise RunError(f"{path} is {log_kind.NAMES[kind]}, not of a run: use `{command_line('show', str(path))}`.")
