"""Splits a batch, for a step that did not fit into memory."""

from __future__ import annotations

import itertools
from typing import Any

from torchnan.config.text import printable
from torchnan.detection.nested import map_tensors, rows_of, tensors_in


def split(batch: Any, parts: int) -> list[tuple[Any, float]]:
    """Splits every tensor of a batch along its first dimension.

    Args:
        batch: nested mappings, sequences and dataclasses of tensors with one row per example.
        parts: number of parts, of nearly equal size; fewer if there are fewer rows.

    Returns:
        Each part with its fraction of the rows. Losses that are means over rows, weighted by these fractions, add up
        to the loss of the whole batch.

    Raises:
        ValueError: the tensors differ in their number of rows, or there is only one row.
    """
    rows = rows_of(batch)
    if rows < 2:
        shapes = ", ".join(f"{where} {tuple(tensor.shape)}" for where, tensor in tensors_in(batch, "batch"))
        raise ValueError(
            f"this batch cannot be split: its tensors have no common first dimension above 1 ({printable(shapes)})"
        )
    edges = [round(rows * i / parts) for i in range(parts + 1)]
    spans = [(a, b) for a, b in itertools.pairwise(edges) if b > a]
    return [(_rows(batch, a, b), (b - a) / rows) for a, b in spans]


def _rows(batch: Any, first: int, last: int) -> Any:
    return map_tensors(batch, lambda _, tensor: tensor[first:last] if tensor.dim() > 0 else tensor)
