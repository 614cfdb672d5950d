"""Signals beside the loss that can explain a spike: learning rate jumps, repeated batches, large gradients."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from torchnan.training.diagnosis.arrays import FloatArray, IntArray
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.series import Prediction, Series, predict
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
    """Finite gradient norms before clipping."""

    norm: Series
    thresholds: Thresholds

    @property
    def step(self) -> IntArray:
        """The step of each."""
        return self.norm.step

    @functools.cached_property
    def ratio(self) -> FloatArray:
        """Each as a multiple of its rolling mean."""
        with np.errstate(all="ignore"):
            return self.norm.values / self._predict(self.norm.values).mean

    @functools.cached_property
    def surprise(self) -> FloatArray:
        """That of their logarithms, because norms differ by factors."""
        values = self.norm.values
        smallest = values[values > 0].min() if (values > 0).any() else 1.0
        with np.errstate(all="ignore"):
            return self._predict(np.log(np.maximum(values, smallest))).surprise

    def _predict(self, values: FloatArray) -> Prediction:
        return predict(values, self.norm.window_rows(self.thresholds), np.ones(len(values), dtype=bool))


@dataclasses.dataclass(frozen=True)
class Signals:
    """All signals of a run, each computed when it is asked for."""

    run: Run
    thresholds: Thresholds

    @functools.cached_property
    def jumps(self) -> RateJumps:
        """Jumps of the learning rate."""
        return _rate_jumps(self.run, self.thresholds)

    @functools.cached_property
    def repeats(self) -> BatchRepeats:
        """Repeated batches."""
        return _batch_repeats(self.run, self.thresholds)

    @functools.cached_property
    def gradients(self) -> GradientNorms:
        """Gradient norms."""
        return GradientNorms(Series.from_run(self.run, "grad_norm"), self.thresholds)


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
