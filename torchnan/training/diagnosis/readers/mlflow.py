"""Reads the folders of MLflow's file store: a file for each metric, with lines of time, value and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from torchnan.training.diagnosis.readers.column_names import match_columns
from torchnan.training.diagnosis.readers.encoded import to_float
from torchnan.training.diagnosis.readers.run_builder import RunBuilder
from torchnan.training.diagnosis.run import Run, RunError


def run_in(folder: Path) -> Path | None:
    """Returns the folder of the metrics of a run: this one, that in it, or that of the newest run in it."""
    if folder.name == "metrics" and (folder.parent / "meta.yaml").is_file():
        return folder
    if (folder / "metrics").is_dir() and (folder / "meta.yaml").is_file():
        return folder / "metrics"
    found = [one.parent / "metrics" for depth in ("*", "*/*", "*/*/*") for one in folder.glob(f"{depth}/meta.yaml")]
    runs = [metrics for metrics in found if metrics.is_dir() and any(metrics.iterdir())]
    return max(runs, key=lambda metrics: metrics.stat().st_mtime, default=None)


def read(folder: Path, columns: Mapping[str, str]) -> Run:
    """Returns the run in the metrics of a folder.

    Args:
        folder: ``metrics`` of a run.
        columns: names of metrics that the user gives for columns of a run.

    Raises:
        RunError: there is no metric in it.
    """
    files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
    if not files:
        raise RunError(f"{folder} has no metrics of MLflow in it.")
    known = match_columns(files, columns)
    builder = RunBuilder(str(folder))
    used = {name: column for name, column in known.items() if column != "step"}
    builder.add_scalars({column: list(_numbers(files[name], builder)) for name, column in used.items()})
    builder.set_aside(files, known, lambda name: [value for _, value in _numbers(files[name], builder)])
    return builder.build()


def _numbers(file: Path, builder: RunBuilder) -> Iterator[tuple[int, float]]:
    damaged = 0
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            fields = line.split()
            try:
                yield int(fields[2]) if len(fields) > 2 else 0, to_float(fields[1])
            except (ValueError, IndexError):
                damaged += 1
                builder.leave_out(line[:10_000])
    if damaged:
        builder.add_note(f"{file.name}: {damaged:,} lines are not a time, a value and a step.")
