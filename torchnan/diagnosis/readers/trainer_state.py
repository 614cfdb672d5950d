"""Reads the trainer_state.json that Transformers writes into its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from torchnan.diagnosis.readers.errors import RunError
from torchnan.diagnosis.readers.run_builder import RunBuilder
from torchnan.diagnosis.run import Run

NAMES = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr"}
MAX_BYTES = 2**29


def read(path: Path) -> Run:
    """Returns the run in the entries of the training; those of evaluations are skipped.

    Raises:
        RunError: the file is something else.
    """
    if path.stat().st_size > MAX_BYTES:
        raise RunError(f"{path} is not a trainer_state.json: it has more than {MAX_BYTES:,} bytes.")
    try:
        state = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not JSON: {error}.") from None
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise RunError(f"{path} is not a trainer_state.json: it has no list named log_history.")
    entries = [entry for entry in history if isinstance(entry, dict) and not NAMES.keys().isdisjoint(entry)]
    builder = RunBuilder(str(path))
    columns = {column: [entry.get(name) for entry in entries] for name, column in NAMES.items()}
    builder.add([entry.get("step") for entry in entries], columns)
    if len(entries) < len(history):
        builder.add_note(
            f"{len(history) - len(entries):,} entries are not of the training, but of evaluations or its end."
        )
    return builder.build()
