"""Checks whether a run shows its planted failure: one that does not affect the training is not a failure.

Compares the rows with the plan (the step, the kind), with a margin to the tree's thresholds; never uses a diagnosis.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.training.runs.run_specs import Truth
from tests.training.runs.small_training import Row

Values = NDArray[np.float64]

# The gradient norm at a spike of each cause, as a multiple of what it was: out of the ordinary, or the usual.
GRADIENTS = {"long_tail_batch": (33, np.inf), "unknown": (0, 5)}


def shown(truth: Truth, rows: list[Row]) -> Truth | None:
    """The truth, with the steps of the rise where only the run can tell them; None if the run does not show it."""
    loss, norm, scale = (column(rows, name) for name in ("loss", "grad_norm", "loss_scale"))
    overflows = truth.first + np.flatnonzero(~np.isfinite(norm[truth.first :]))
    if truth.kind == "healthy":
        return truth if np.isfinite(loss).all() else None
    if truth.kind == "nonfinite":
        return truth if not np.isfinite(loss[truth.first : truth.last + 1]).all() else None
    if truth.kind == "fp16_overflow":
        in_forward = not np.isfinite(loss[truth.first]) or "activation_overflow" not in truth.causes
        return truth if len(overflows) >= 3 and scale.min() >= 1 and in_forward else None
    if truth.kind == "loss_scale_constant":
        return truth if len(overflows) >= 3 and overflows[0] <= truth.last and np.ptp(scale) == 0 else None
    if truth.kind == "loss_scale_collapse":
        return truth if scale.min() < 0.5 else None
    if not np.isfinite(loss).all():
        return None
    if truth.kind in ("spike", "persistent_elevation"):
        return truth if jumps(truth, loss, norm) else None
    return rises(truth, loss, norm, rows)


def column(rows: list[Row], name: str) -> Values:
    return np.array([np.nan if row[name] is None else row[name] for row in rows])


def jumps(truth: Truth, loss: Values, norm: Values) -> bool:
    before = loss[truth.first - 100 : truth.first]
    mean, deviation = before.mean(), before.std()
    reached = loss[truth.first : truth.last + 8]
    just_before = loss[truth.first + int(reached.argmax()) - 100 :][:100]
    if reached.max() < max(mean + 6 * deviation, just_before.mean() + 3.05 * just_before.std()):
        return False
    after = running_mean(loss[truth.last + 1 : truth.last + 51], 5)
    if truth.kind == "persistent_elevation":
        return bool(after.min() > mean + deviation and loss[truth.last + 50 :].mean() > mean + deviation)
    least, most = GRADIENTS.get(truth.causes[0], (0, 25))
    factor = norm[truth.first : truth.last + 2].max() / norm[truth.first - 100 : truth.first].mean()
    return bool(least < factor < most and after[:44].min() < mean + 0.3 * deviation)


def rises(truth: Truth, loss: Values, norm: Values, rows: list[Row]) -> Truth | None:
    smooth = running_mean(loss, 40)
    lowest = int(smooth[: len(smooth) - 150].argmin())
    highest = lowest + int(smooth[lowest:].argmax())
    rise, noise = smooth[highest] - smooth[lowest], np.diff(loss[: lowest + 40]).std()
    if highest - lowest < 200 or rise < 2.5 * noise or smooth[-1] < smooth[lowest] + 0.8 * rise:
        return None
    quarters = running_mean(loss[lowest : highest + 40], (highest + 40 - lowest) // 4)
    if np.diff(quarters[:: len(quarters) // 4 or 1]).min() < 0:  # a step up, or a hill, is not a slow rise
        return None
    begins = lowest + int(np.argmax(smooth[lowest:] > smooth[lowest] + 0.3 * rise))
    trend = norm[highest - 30 : highest + 30].mean() / norm[max(0, lowest - 30) : lowest + 30].mean()
    weights = np.hypot(*np.array([row["weight_norm"] for row in rows]).T)
    factor = np.abs(np.log(weights[200:] / weights[:-200]))[lowest:].max()
    wanted = {
        ("lr_increasing",): rows[begins]["lr"][0] > rows[lowest]["lr"][0],
        ("weight_norm",): factor > np.log(2.2),
        ("gradient_trend",): trend > 1.3 and factor < np.log(1.8),
        (): trend < 1 and factor < np.log(1.8),
    }[truth.causes]
    return replace(truth, first=max(0, lowest - 60), last=begins + 40) if wanted else None


def running_mean(values: Values, length: int) -> Values:
    return np.convolve(values, np.ones(length) / length, "valid")
