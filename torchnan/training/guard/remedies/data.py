"""Remedies for bad data: leave out a row, replace what is not finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchnan.detection import report_rows
from torchnan.detection.nested import map_tensors, rows_of
from torchnan.training.guard.remedies.call import Call
from torchnan.training.guard.remedies.change import Change
from torchnan.training.guard.remedies.origin import Origin
from torchnan.training.guard.remedies.remedy import CallRemedy, Remedy


class SkipRows(Remedy):
    """Leaves out the rows of the batch that the bad values are in."""

    answers = "a sample that the program cannot compute with: bad data, an empty sequence, an outlier"
    because = "the other rows are as they were; means over the batch and batch statistics are over fewer rows"

    def changes(self, origin: Origin) -> Iterator[Change]:
        if 0 < len(origin.bad_rows) < origin.rows:
            yield _WithoutRows(origin.rows, sorted(origin.bad_rows))


class _WithoutRows(Change):
    def __init__(self, rows: int, left_out: list[int]) -> None:
        shown = report_rows.shown_of(len(left_out), 5)
        more = f" and {len(left_out) - shown} more" if shown < len(left_out) else ""
        names = ", ".join(map(str, left_out[:shown]))
        super().__init__(f"skip row{'s' * (len(left_out) > 1)} {names}{more} of {rows} in the batch")
        self._kept = [row for row in range(rows) if row not in left_out]
        self._rows = rows

    def batch(self, batch: Any) -> Any:
        if rows_of(batch) != self._rows:
            return batch
        self.is_effective = True
        return map_tensors(batch, lambda _, tensor: tensor[self._kept] if tensor.dim() > 0 else tensor)


class ReplaceInput(CallRemedy):
    """Puts 0 in place of data that is not finite, where it is first read."""

    answers = "data with a hole in it"
    because = "finite data keeps its bits; whether 0 is a fair value for a hole only you can say"
    operators = frozenset()

    def fits(self, origin: Origin, call: Call) -> bool:
        return origin.finding is not None and origin.finding.origin in ("input", "foreign", "uninit")

    def text(self, origin: Origin, call: Call) -> str:
        return f"nan_to_num(0) before {call.operator}"

    def replace(self, call: Call) -> Any:
        return call.replace_leaves(
            lambda value: (
                value.nan_to_num(0.0, 0.0, 0.0)
                if isinstance(value, torch.Tensor) and value.is_floating_point()
                else value
            )
        )
