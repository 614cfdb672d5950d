"""A run's rows as a table, as a program without torchnan writes it."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from tests.training.runs.small_training import Row

COLUMNS = ("step", "loss", "grad_norm", "lr", "loss_scale", "weight_norm", "batch_digest")


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """One value per row: the learning rate is the largest of the groups, the weight norm that of all of them."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        for row in rows:
            flat = {**row, "lr": max(row["lr"]), "weight_norm": math.hypot(*row["weight_norm"])}
            lines.writerow(["" if flat[name] is None else flat[name] for name in COLUMNS])
