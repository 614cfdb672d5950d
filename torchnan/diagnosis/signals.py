"""What the other panels show beside the loss: jumps of the learning rate, batches that came twice, large gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from torchnan.diagnosis.run import Run
from torchnan.diagnosis.series import Numbers, Series, predict
from torchnan.diagnosis.thresholds import Thresholds

MAX_JUMPS = 1000  # of a learning rate that does nothing but jump


@dataclasses.dataclass(frozen=True)
class Jumps:
    """Steps at which the learning rate goes up out of turn; from and to what."""

    step: NDArray[np.int64]
    old: Numbers
    new: Numbers


def jumps(run: Run, thresholds: Thresholds) -> Jumps:
    """A schedule may be steep: a jump is out of all proportion to the steps of the schedule around it."""
    rate = Series.from_run(run, "lr")
    change = np.diff(rate.values)
    up = np.flatnonzero(rate.values[1:] > thresholds.lr_jump * np.maximum(rate.values[:-1], 0))
    up = up[np.argsort(-change[up], kind="stable")[:MAX_JUMPS]]
    around = up[:, None] + np.concatenate([np.arange(-20, 0), np.arange(1, 21)])
    usual = np.where(
        (around >= 0) & (around < len(change)), np.abs(change)[around.clip(0, max(len(change) - 1, 0))], np.nan
    )
    if len(up):
        up = np.sort(up[change[up] > 10 * np.nan_to_num(np.nanmedian(usual, axis=1))]) if usual.size else up
    return Jumps(rate.step[1:][up], rate.values[:-1][up], rate.values[1:][up])


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Rows whose batch came within a few steps before, and when; and which share of all rows is so."""

    step: NDArray[np.int64]
    earlier: NDArray[np.int64]
    share: float


def repeats(run: Run, thresholds: Thresholds) -> Repeats:
    """In a run that goes through little data again and again every batch is a repeat: the share tells."""
    if run.batch_digest is None:
        return Repeats(run.step[:0], run.step[:0], 0.0)
    rows = np.flatnonzero(run.batch_digest.given)
    digest, step = run.batch_digest.values[rows], run.step[rows]
    order = np.argsort(digest, kind="stable")
    same = digest[order][1:] == digest[order][:-1]
    near = step[order][1:] - step[order][:-1] <= thresholds.duplicate_steps
    at, earlier = order[1:][same & near], order[:-1][same & near]
    by_step = np.argsort(at)
    return Repeats(step[at[by_step]], step[earlier[by_step]], len(at) / max(1, len(rows)))


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Gradient norms before clipping, as multiples of their rolling mean, and how surprising each is."""

    step: NDArray[np.int64]
    ratio: Numbers
    surprise: Numbers


def gradients(run: Run, thresholds: Thresholds) -> Gradients:
    """Of the finite norms. Surprise is measured on their logarithms, as norms differ by factors."""
    norm = Series.from_run(run, "grad_norm")
    window = norm.window_rows(thresholds)
    everything = np.ones(len(norm), dtype=bool)
    with np.errstate(all="ignore"):
        ratio = norm.values / predict(norm.values, window, everything).mean
        smallest = norm.values[norm.values > 0].min() if (norm.values > 0).any() else 1.0
        surprise = predict(np.log(np.maximum(norm.values, smallest)), window, everything).surprise
    return Gradients(norm.step, ratio, surprise)
