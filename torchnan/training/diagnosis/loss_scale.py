"""Section 3 of the tree: how the loss scale behaved, and whether overflows exceed its search for a scale."""

from __future__ import annotations

import dataclasses

import numpy as np

from torchnan.training.diagnosis.arrays import BoolArray, FloatArray, IntArray
from torchnan.training.diagnosis.episodes import CAUSE_STEPS
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.thresholds import Thresholds

HALVINGS = 3  # below the floor, from a scale that began there


@dataclasses.dataclass(frozen=True)
class ScaleHistory:
    """The loss scale of a run, and its overflows.

    Attributes:
        dtype: dtype that the run computes in; ``inferred`` if it is not in the log but follows from the loss scale.
        overflows: steps with a non-finite gradient.
        changes: ``"unknown"``, ``"constant"`` or ``"dynamic"``.
        scale: the first and the smallest scale.
        without_known_trigger: first step, number and last step of the first overflows that the scaler's search for a
            scale does not explain; ``None`` if it explains all.
        collapsed: step from which the scale is below the floor, and first step of the fall that led there.
    """

    dtype: str | None
    inferred: bool
    overflows: IntArray
    changes: str
    scale: tuple[float, float]
    without_known_trigger: tuple[int, int, int] | None
    collapsed: tuple[int, int] | None


def scale_history(run: Run, thresholds: Thresholds) -> ScaleHistory:
    """Analyzes the loss scale and the gradient norm of a run."""
    scale = run.column("loss_scale")
    known = scale.given & np.isfinite(scale.values)
    values = scale.values[known]
    in_use = bool((values != 1).any())
    overflow = _overflows(run)
    dtype = run.dtype or ("float16" if in_use else None)
    if not len(values):
        return ScaleHistory(dtype, run.dtype is None, run.step[overflow], "unknown", (np.nan, np.nan), None, None)
    changes = "dynamic" if (values != values[0]).any() else "constant"
    return ScaleHistory(
        dtype,
        run.dtype is None,
        run.step[overflow],
        changes,
        (float(values[0]), float(values.min())),
        _overflows_without_known_trigger(run.step[known], values, overflow[known], thresholds),
        _collapse(run.step[known], values, thresholds) if changes == "dynamic" else None,
    )


def _overflows(run: Run) -> BoolArray:
    """Returns the rows with a non-finite gradient; without logged norms, those after which the scale falls."""
    if run.has("grad_norm"):
        return run.column("grad_norm").bad
    values = run.column("loss_scale").values
    falls = np.zeros(len(run), dtype=bool)
    falls[:-1] = values[1:] < values[:-1]
    return falls


def _overflows_without_known_trigger(
    step: IntArray, scale: FloatArray, overflow: BoolArray, thresholds: Thresholds
) -> tuple[int, int, int] | None:
    """Returns the first overflows at scales that had been fine.

    A scaler searches: it doubles until a step overflows, and at the start it halves until none does. So an overflow
    means something only at a scale at which, and above which, all steps before it were fine.
    """
    good, bad = np.flatnonzero(~overflow), np.flatnonzero(overflow)
    if len(good) < thresholds.least_rows or not len(bad):
        return None
    from scipy.ndimage import minimum_filter1d

    rows = thresholds.spike_window
    proved = minimum_filter1d(scale[good], rows, origin=(rows - 1) // 2, mode="nearest")  # at the good rows up to each
    before = np.searchsorted(good, bad)
    known_before = before >= thresholds.least_rows
    fine = np.full(len(bad), -np.inf)
    # Scales that were fine before the stretch of overflows, not in a pause within it.
    first = np.concatenate([[True], np.diff(step[bad]) > thresholds.recovery_steps])
    started = np.maximum.accumulate(np.where(first, np.arange(len(bad)), 0))
    fine[known_before] = proved[np.maximum(before[started[known_before]] - 1, 0)]
    fine[before[started] < thresholds.least_rows] = -np.inf
    surprising = np.flatnonzero(scale[bad] <= fine)
    for group in np.split(surprising, np.flatnonzero(np.diff(started[surprising])) + 1):
        if len(group) >= thresholds.overflow_steps:
            first = group[0]
            while (
                first and step[bad[first]] - step[bad[first - 1]] <= CAUSE_STEPS
            ):  # the first step may be at a scale that was just doubled
                first -= 1
            return int(step[bad[first]]), len(group), int(step[bad[group[-1]]])
    return None


def _collapse(step: IntArray, scale: FloatArray, thresholds: Thresholds) -> tuple[int, int] | None:
    """Returns the first step below the floor, and the first step of the fall: from above the floor, or repeatedly below
    it."""
    below = np.flatnonzero(scale < thresholds.scale_floor)
    if not len(below):
        return None
    if below[0] == 0:
        halved = np.flatnonzero((np.diff(scale) < 0) & (scale[1:] < thresholds.scale_floor))
        return (int(step[halved[0] + 1]), int(step[halved[0]])) if len(halved) >= HALVINGS else None
    falls = np.flatnonzero(np.diff(scale[: below[0] + 1]) < 0)  # the last row at the higher scale
    pauses = np.flatnonzero(np.diff(step[falls]) > thresholds.recovery_steps)
    return int(step[below[0]]), int(step[falls[pauses[-1] + 1 if len(pauses) else 0]])
