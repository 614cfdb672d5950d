"""Finds non-finite losses that were written as 0: some programs replace a NaN before they log it."""

from __future__ import annotations

import dataclasses

import numpy as np

from torchnan.training.diagnosis.arrays import BoolArray
from torchnan.training.diagnosis.run import Column, Run

MIN_ZEROS = 5  # rows at the end, after a loss that fell to exactly 0 at once
MIN_LOSS = 0.05  # before it


def revealed(run: Run) -> tuple[Run, str]:
    """Returns the run with NaN for such losses, and the evidence; ``""`` if there are none."""
    loss, norm = run.column("loss"), run.column("grad_norm")
    zero = loss.given & (loss.values == 0)
    bad = zero & norm.bad
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        text = f"the loss is written as 0 where the gradient norm is {norm.values[first]}"
    elif (bad := _sudden_zeros(loss, zero) & ~norm.given).any():
        text = "the loss is exactly 0 at once, and stays so: programs that hide a NaN write it like that"
    else:
        return run, ""
    # All zeros after the first have the same cause, with or without a gradient norm.
    bad |= zero & (np.arange(len(zero)) >= np.flatnonzero(bad)[0])
    values = np.where(bad, np.nan, loss.values)
    return dataclasses.replace(run, columns={**run.columns, "loss": Column(values, loss.given)}), text


def _sudden_zeros(loss: Column, zero: BoolArray) -> BoolArray:
    """Returns the rows of a loss that is 0 to the end, after one that was far from it."""
    rows = np.flatnonzero(loss.given)
    found = np.zeros(len(zero), dtype=bool)
    last = np.flatnonzero(~zero[rows])
    first = int(last[-1]) + 1 if len(last) else 0
    before = loss.values[rows[max(0, first - 10) : first]]
    if first and len(rows) - first >= MIN_ZEROS and np.isfinite(before).all() and before.min() > MIN_LOSS:
        found[rows[first:]] = True
    return found
