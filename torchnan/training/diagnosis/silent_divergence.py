"""Section 4 of the tree: does the loss rise slowly, and why?"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchnan.training.diagnosis.diagnosis_builder import DiagnosisBuilder
from torchnan.training.diagnosis.divergence import Change, Rise, Trend, gradient_trend, rate_change, rise, weight_change
from torchnan.training.diagnosis.episodes import Episode
from torchnan.training.diagnosis.extreme_value import OUTLIER_MARGIN
from torchnan.training.diagnosis.formatting import format_number
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.series import Series
from torchnan.training.diagnosis.signals import Signals
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Suspect

MIN_TAU = 0.4  # Kendall's tau of a loss that rises and then stays up is far below 1
MAX_P_VALUE = 0.01  # of the trend of the gradient norm
ABRUPT_SHARE = 0.5  # of the rise: if one episode exceeds this, the rise is not slow


def find(run: Run, found: list[Episode], signals: Signals, thresholds: Thresholds) -> Rise | None:
    """Returns the slow rise that the run ends with, unless it is mostly one sudden episode.

    A rise together with the learning rate counts even if it is sudden. Together with the learning rate or a weight
    norm, half of the height is sufficient, because that is not noise.
    """
    up = rise(Series.from_run(run, "loss"), thresholds)
    if up is None or up.tau < MIN_TAU or up.p_value > thresholds.false_alarm:
        return None
    increasing = _is_increasing(run, up, signals, thresholds)
    explained = increasing or _is_changed(weight_change(run, up, thresholds), thresholds)
    if up.sigmas < (thresholds.spike_sigma / OUTLIER_MARGIN if explained else thresholds.spike_sigma):
        return None
    return up if increasing or not _is_abrupt(run, found, up, thresholds) else None


def _is_abrupt(run: Run, found: list[Episode], up: Rise, thresholds: Thresholds) -> bool:
    """Returns whether one episode makes up most of the rise."""
    loss = Series.from_run(run, "loss")
    for episode in found:
        at, span = loss.row_at(episode.step), loss.to_rows(thresholds.recovery_steps)
        jump = float(np.median(loss.values[at : at + span])) - episode.mean
        if episode.state != "recovered" and jump > ABRUPT_SHARE * (up.high - up.low):
            return True
    return False


def _is_increasing(run: Run, up: Rise, signals: Signals, thresholds: Thresholds) -> bool:
    rate = rate_change(run, up, thresholds)
    if rate is None or rate.factor <= thresholds.lr_factor:
        return False
    jumps = signals.jumps
    return not ((jumps.step > rate.first - thresholds.recovery_steps) & (jumps.step <= rate.last)).any()


def _is_changed(weights: Change | None, thresholds: Thresholds) -> bool:
    return weights is not None and bool(abs(np.log(weights.factor)) > np.log(thresholds.weight_factor))


def evaluate(
    run: Run, up: Rise | None, signals: Signals, symptoms: int, diagnosis: DiagnosisBuilder, thresholds: Thresholds
) -> None:
    """Answers Q4.1 to Q4.4."""
    question = f"Has the loss increased over {thresholds.divergence_steps} steps, up to the end?"
    if up is None:
        diagnosis.answer("Q4.1", question, "no")
        return
    low, high = format_number(up.low), format_number(up.high)
    text = f"from {low} at step {up.first:,} to {high}, {up.sigmas:.1f} times its noise"
    diagnosis.answer("Q4.1", question, "yes", text)
    rate, weights = rate_change(run, up, thresholds), weight_change(run, up, thresholds)
    gradient = gradient_trend(run, up, thresholds)
    increasing = _is_increasing(run, up, signals, thresholds)
    diagnosis.answer(
        "Q4.2", "Has the learning rate increased over the same window?", _yes(rate, increasing), _factor(rate)
    )
    changed = _is_changed(weights, thresholds)
    question = (
        f"Has a weight norm changed more than {thresholds.weight_factor:g}x in {thresholds.divergence_steps} steps?"
    )
    diagnosis.answer("Q4.3", question, _yes(weights, changed), _factor(weights))
    trending = gradient is not None and gradient.p_value < MAX_P_VALUE and gradient.factor > 1
    text = "" if gradient is None else f"x {gradient.factor:.2f} since step {up.first:,}"
    diagnosis.answer("Q4.4", "Is the gradient norm trending up?", _yes(gradient, trending), text)
    suspects: list[Suspect] = []
    if increasing:
        suspects.append(Suspect("lr_increasing", "likely", f"the learning rate goes {_factor(rate)}"))
    if changed:
        suspects.append(Suspect("weight_norm", "likely", f"the weight norm goes {_factor(weights)}"))
    if trending:
        suspects.append(Suspect("gradient_trend", "likely", f"the gradient norm goes {text}"))
    _conclude(up, suspects, gradient, symptoms, diagnosis, thresholds)


def _conclude(
    up: Rise,
    suspects: list[Suspect],
    gradient: Trend | None,
    symptoms: int,
    diagnosis: DiagnosisBuilder,
    thresholds: Thresholds,
) -> None:
    evidence: dict[str, Any] = {
        "loss_low": up.low,
        "loss_high": up.high,
        "rise_in_noise": round(up.sigmas, 2),
        "steadiness": round(up.tau, 3),
        "spikes_within": symptoms or None,
    }
    branch = {"lr_increasing": "Q4.2", "weight_norm": "Q4.2 -> Q4.3"}.get(
        suspects[0].cause if suspects else "", "Q4.2 -> Q4.3 -> Q4.4"
    )
    branch, steps = f"Q1.1 -> Q2.1 -> Q3.1 -> Q4.1 -> {branch}", (up.first, up.last)
    # Noise that wanders rises for hundreds of steps, too: an unexplained rise must exceed all earlier ones.
    if not suspects and not up.exceeds_earlier_rises:
        return
    if suspects or (gradient is None and up.sigmas > OUTLIER_MARGIN * thresholds.spike_sigma):
        diagnosis.add_verdict("silent_divergence", suspects, steps, branch, **evidence)
    elif gradient is not None:
        done = [Suspect("converged", "possible", "the loss does not fall any more, and nothing else moves")]
        diagnosis.add_verdict("plateau", done, steps, branch, confidence="possible", **evidence)


def _yes(known: object, answer: bool) -> str:
    return "not in the log" if known is None else "yes" if answer else "no"


def _factor(change: Change | None) -> str:
    if change is None:
        return ""
    name = f" of {change.name}" if change.name not in ("", "all") else ""
    return f"x {change.factor:.3g}{name} from step {change.first:,} to {change.last:,}"
