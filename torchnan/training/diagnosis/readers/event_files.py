"""Reads TensorBoard's event files with TensorBoard's own reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torchnan.training.diagnosis.readers.column_names import match_columns
from torchnan.training.diagnosis.readers.run_builder import RunBuilder
from torchnan.training.diagnosis.run import Run, RunError

_SPLITS = {"train": "train", "validation": "val", "val": "val", "eval": "val", "test": "val"}


def read(path: Path, columns: Mapping[str, str]) -> Run:
    """Returns the run in the scalars of an event file, or of all event files of a folder.

    Args:
        path: the file or the folder.
        columns: names of scalars that the user gives for columns of a run.

    Raises:
        ImportError: TensorBoard is not installed.
        RunError: no scalar has a known name.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise ImportError("reading event files needs tensorboard: pip install torchnan[tensorboard]") from None
    builder = RunBuilder(str(path))
    scalars: dict[str, list[tuple[int, float]]] = {}
    for folder, prefix in _runs(path):
        # without purging: TensorBoard drops what was written before a restart, with its NaN
        events = EventAccumulator(str(folder), {"scalars": 0}, purge_orphaned_data=False).Reload()
        scalars.update(
            {prefix + tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        )
    known = {name: column for name, column in match_columns(scalars, columns).items() if column != "step"}
    if not known:
        named = f"its scalars are {', '.join(list(scalars)[:10])}" if scalars else "it has no scalars"
        raise RunError(f"{path} has no loss, grad_norm, lr, loss_scale or weight_norm: {named}.")
    builder.set_aside(scalars, known, lambda name: [value for _, value in scalars[name]])
    builder.add_scalars({column: scalars[name] for name, column in known.items()})
    return builder.build()


def folder_in(path: Path) -> Path | None:
    """Returns the folder with event files: this one, the newest in it, or the parent of separate folders such as
    training."""
    found = [file.parent for file in path.rglob("*tfevents*") if file.is_file()]
    if not found or path in found:
        return path if found else None
    newest = max(found, key=lambda folder: folder.stat().st_mtime)
    return newest.parent if newest.name in _SPLITS and newest.parent != path.parent else newest


def _runs(path: Path) -> list[tuple[Path, str]]:
    """Returns the folders of a run, each with the prefix for its scalars: Keras writes two, for training and
    evaluation."""
    if path.is_file() or _has_events(path):
        return [(path, "")]
    splits = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and _has_events(folder)]
    return [(folder, "" if _SPLITS.get(folder.name) == "train" else "val/") for folder in splits]


def _has_events(folder: Path) -> bool:
    return any("tfevents" in one.name for one in folder.iterdir())
