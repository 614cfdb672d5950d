"""Signals beside the loss that can explain a spike: learning rate jumps, repeated batches, large gradients."""

from __future__ import annotations

import dataclasses

import numpy as np

from torchnan.training.diagnosis.arrays import FloatArray, IntArray
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.series import Series, predict
from torchnan.training.diagnosis.thresholds import Thresholds

MAX_JUMPS = 1000  # bounds the work for a learning rate that jumps at every step
NEIGHBOURS = 20  # changes on either side of a jump that it is compared with
JUMP_FACTOR = 10


@dataclasses.dataclass(frozen=True)
class RateJumps:
    """Steps at which the learning rate jumps up, and its values before and after."""

    step: IntArray
    old: FloatArray
    new: FloatArray


@dataclasses.dataclass(frozen=True)
class BatchRepeats:
    """Steps whose batch was seen shortly before, and when; ``share`` of all batches."""

    step: IntArray
    earlier: IntArray
    share: float


@dataclasses.dataclass(frozen=True)
class GradientNorms:
    """Finite gradient norms before clipping, as multiples of their rolling mean, and their surprise."""

    step: IntArray
    ratio: FloatArray
    surprise: FloatArray


@dataclasses.dataclass(frozen=True)
class Signals:
    """All signals of a run."""

    jumps: RateJumps
    repeats: BatchRepeats
    gradients: GradientNorms

    @classmethod
    def from_run(cls, run: Run, thresholds: Thresholds) -> Signals:
        """Computes all signals of a run."""
        return cls(_rate_jumps(run, thresholds), _batch_repeats(run, thresholds), _gradient_norms(run, thresholds))


def _rate_jumps(run: Run, thresholds: Thresholds) -> RateJumps:
    """Returns the jumps that are far larger than the changes around them: a schedule may be steep."""
    rate = Series.from_run(run, "lr")
    change = np.diff(rate.values)
    up = np.flatnonzero(rate.values[1:] > thresholds.lr_jump * np.maximum(rate.values[:-1], 0))
    up = up[np.argsort(-change[up], kind="stable")[:MAX_JUMPS]]
    around = up[:, None] + np.concatenate([np.arange(-NEIGHBOURS, 0), np.arange(1, NEIGHBOURS + 1)])
    usual = np.where(
        (around >= 0) & (around < len(change)), np.abs(change)[around.clip(0, max(len(change) - 1, 0))], np.nan
    )
    if len(up):
        up = np.sort(up[change[up] > JUMP_FACTOR * np.nan_to_num(np.nanmedian(usual, axis=1))]) if usual.size else up
    return RateJumps(rate.step[1:][up], rate.values[:-1][up], rate.values[1:][up])


def _batch_repeats(run: Run, thresholds: Thresholds) -> BatchRepeats:
    """Returns the repeats, with their share: a run over little data repeats every batch, which means nothing."""
    if run.batch_digest is None:
        return BatchRepeats(run.step[:0], run.step[:0], 0.0)
    rows = np.flatnonzero(run.batch_digest.given)
    digest, step = run.batch_digest.values[rows], run.step[rows]
    order = np.argsort(digest, kind="stable")
    same = digest[order][1:] == digest[order][:-1]
    near = step[order][1:] - step[order][:-1] <= thresholds.duplicate_steps
    at, earlier = order[1:][same & near], order[:-1][same & near]
    by_step = np.argsort(at)
    return BatchRepeats(step[at[by_step]], step[earlier[by_step]], len(at) / max(1, len(rows)))


def _gradient_norms(run: Run, thresholds: Thresholds) -> GradientNorms:
    """Returns the finite norms. Surprise is that of their logarithms, because norms differ by factors."""
    norm = Series.from_run(run, "grad_norm")
    window = norm.window_rows(thresholds)
    everything = np.ones(len(norm), dtype=bool)
    with np.errstate(all="ignore"):
        ratio = norm.values / predict(norm.values, window, everything).mean
        smallest = norm.values[norm.values > 0].min() if (norm.values > 0).any() else 1.0
        surprise = predict(np.log(np.maximum(norm.values, smallest)), window, everything).surprise
    return GradientNorms(norm.step, ratio, surprise)
