"""Reads TensorBoard's event files with TensorBoard's own reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torchnan.diagnosis.readers.column_names import match_columns
from torchnan.diagnosis.readers.errors import RunError
from torchnan.diagnosis.readers.run_builder import RunBuilder
from torchnan.diagnosis.run import Run


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
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    known = match_columns(tags, columns)
    if not known:
        named = f"its scalars are {', '.join(tags[:10])}" if tags else "it has no scalars"
        raise RunError(f"{path} has no loss, grad_norm, lr, loss_scale or weight_norm: {named}.")
    builder = RunBuilder(str(path))
    scalars = {known[tag]: {event.step: event.value for event in events.Scalars(tag)} for tag in known}
    steps = sorted(set().union(*scalars.values()))
    builder.add(steps, {column: [values.get(step) for step in steps] for column, values in scalars.items()})
    return builder.build()
