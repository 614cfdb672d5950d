"""Section 2 of the tree: does the loss spike, does it recover, and what is the cause?"""

from __future__ import annotations

import functools

import numpy as np

from torchnan.training.diagnosis.arrays import IntArray
from torchnan.training.diagnosis.diagnosis_builder import DiagnosisBuilder
from torchnan.training.diagnosis.episodes import CAUSE_STEPS, Episode, episodes
from torchnan.training.diagnosis.formatting import display_name, format_number
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.series import Series
from torchnan.training.diagnosis.signals import BatchRepeats, GradientNorms, RateJumps, Signals
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Suspect

MAX_REPEAT_CHANCE = 0.05  # of finding repeats near an episode by chance
MIN_GRADIENT_SURPRISE = 5.0  # with MIN_GRADIENT_RATIO: sufficient below grad_factor
MIN_GRADIENT_RATIO = 10.0


def find(run: Run, signals: Signals, thresholds: Thresholds) -> list[Episode]:
    """Returns the sudden rises of the loss that exceed chance."""
    loss = Series.from_run(run, "loss")
    repeated = (
        np.isin(loss.step, signals.repeats.step)
        if signals.repeats.share < MAX_REPEAT_CHANCE * 4
        else np.zeros(len(loss), bool)
    )

    @functools.cache
    def signal_steps() -> IntArray:
        large = signals.gradients.step[signals.gradients.ratio > thresholds.grad_factor]
        rare = signals.repeats.step if signals.repeats.share < MAX_REPEAT_CHANCE else signals.repeats.step[:0]
        return np.unique(np.concatenate([signals.jumps.step, rare, large]))

    return episodes(loss, repeated, signal_steps, thresholds)


def evaluate(
    run: Run, found: list[Episode], signals: Signals, diagnosis: DiagnosisBuilder, thresholds: Thresholds
) -> None:
    """Answers Q2.1 to Q2.4 for each episode."""
    loss = Series.from_run(run, "loss")
    question = f"Is a loss above the mean by {thresholds.spike_sigma:g} sigma, and by more than chance?"
    if not found:
        few = "" if len(loss) > loss.window_rows(thresholds) else f"; {len(loss)} rows are too few to tell"
        diagnosis.answer("Q2.1", question, "no", f"over {thresholds.spike_window} steps{few}")
        return
    for episode in found:
        above = (episode.loss - episode.mean) / episode.sigma if episode.sigma else np.inf
        peak, mean = format_number(episode.loss), format_number(episode.mean)
        text = f"step {episode.step:,}: {peak} is mean {mean} + {above:.1f} sigma"
        diagnosis.answer("Q2.1", question, "yes", text)
        back = {"recovered": "yes", "persistent": "no", "open": "not known yet"}[episode.state]
        within = f"mean + {thresholds.recovery_sigma:g} sigma within {thresholds.recovery_steps} steps"
        diagnosis.answer("Q2.2", f"Does it come back to {within}?", back, _came_back(episode))
        kind, last = ("persistent_elevation", "Q2.4") if episode.state == "persistent" else ("spike", "Q2.3")
        suspects = _suspects(run, loss, episode, signals, thresholds)
        diagnosis.answer(last, "What does it come from?", display_name(suspects[0].cause), suspects[0].evidence)
        diagnosis.add_verdict(
            kind,  # type: ignore[arg-type]
            suspects,
            (episode.step, episode.last),
            f"Q1.1 -> Q2.1 -> Q2.2 -> {last}",
            confidence="likely" if episode.state != "open" else "possible",
            loss=episode.loss,
            peak_step=episode.peak,
            mean=episode.mean,
            sigma=episode.sigma,
            above_sigma=round(above, 2),
            surprise=round(episode.surprise, 2),
            surprise_by_chance=round(episode.level, 2),
            recovered=back,
        )


def _came_back(episode: Episode) -> str:
    if episode.state == "recovered":
        return f"after step {episode.last:,}"
    return f"it is {episode.shift:.1f} deviations up" if episode.state == "persistent" else "the log ends before"


def _suspects(run: Run, loss: Series, episode: Episode, signals: Signals, thresholds: Thresholds) -> list[Suspect]:
    """Returns the suspects, the likeliest first: a fault of the schedule or the loader is a fact, and explains a large
    gradient.
    """
    found = [_jump(loss, episode, signals.jumps), _repeat(loss, episode, signals.repeats)]
    found += [_gradient(loss, episode, signals.gradients, thresholds)]
    if episode.state == "persistent":
        found += _persistent_elevation(run, loss, episode, thresholds)
    elif episode.is_single and not any(found):
        text = "only that step's loss is high: the weights are fine, the batch is not like the others"
        found.append(Suspect("unknown", "possible", text))
    known = [suspect for suspect in found if suspect is not None]
    return known or [Suspect("unknown", "possible", "learning rate, batches and gradient norms show nothing")]


def _near(loss: Series, episode: Episode) -> tuple[int, int]:
    """Returns the range of steps that the cause must be in; rows may be far apart."""
    reach = max(CAUSE_STEPS, round(2 * loss.stride))
    return episode.step - reach, episode.step + round(loss.stride) - 1


def _jump(loss: Series, episode: Episode, jumps: RateJumps) -> Suspect | None:
    first, last = _near(loss, episode)
    near = np.flatnonzero((jumps.step >= first) & (jumps.step <= last))
    if not len(near):
        return None
    i = near[np.argmax(jumps.new[near] - jumps.old[near])]
    old, new = format_number(jumps.old[i]), format_number(jumps.new[i])
    text = f"the learning rate jumps from {old} to {new} at step {jumps.step[i]:,}"
    return Suspect("lr_discontinuity", "likely", text)


def _repeat(loss: Series, episode: Episode, repeats: BatchRepeats) -> Suspect | None:
    """Accepts repeats shortly after the episode, too: a batch that is served twice spikes at the first time already."""
    first, last = _near(loss, episode)
    near = np.flatnonzero((repeats.step >= first) & (repeats.step <= last + CAUSE_STEPS))
    others = (len(repeats.step) - len(near)) / max(1, len(loss))
    if not len(near) or 1 - (1 - others) ** loss.to_rows(2 * CAUSE_STEPS) > max(
        MAX_REPEAT_CHANCE, _stuck(near, loss, others)
    ):
        return None
    i = near[0]
    text = f"the batch of step {repeats.step[i]:,} is that of step {repeats.earlier[i]:,}"
    text += f"; repeats: {len(near)} so near the spike, {others:.2%} of all batches elsewhere"
    return Suspect("duplicate_batch", "likely", text)


def _stuck(near: IntArray, loss: Series, others: float) -> float:
    """Returns the accepted chance of repeats near the episode.

    A loader that is stuck raises its own share: half of the rows near the episode are sufficient, unless all batches
    repeat.
    """
    return 1.0 if len(near) >= loss.to_rows(CAUSE_STEPS) / 2 and others < 0.5 else 0.0


def _gradient(loss: Series, episode: Episode, gradients: GradientNorms, thresholds: Thresholds) -> Suspect | None:
    at = np.arange(*np.searchsorted(gradients.step, [episode.step, episode.peak + 1]))
    if not len(at):
        return None
    with np.errstate(invalid="ignore"):
        i = at[np.argmax(np.nan_to_num(gradients.ratio[at], nan=0.0))]
    text = f"the gradient norm of step {gradients.step[i]:,} is {gradients.ratio[i]:.1f} times its rolling mean"
    if gradients.ratio[i] > thresholds.grad_factor:
        return Suspect("long_tail_batch", "likely", text)
    if (
        gradients.surprise[i] > MIN_GRADIENT_SURPRISE
        and gradients.ratio[i] > MIN_GRADIENT_RATIO
        and episode.state != "persistent"
    ):
        return Suspect("long_tail_batch", "possible", f"{text}, less than {thresholds.grad_factor:g} but out of turn")
    return None


def _persistent_elevation(run: Run, loss: Series, episode: Episode, thresholds: Thresholds) -> list[Suspect]:
    """Ranks two suspects by the shape: changed data show at once and stay, damaged weights rise over some steps."""
    row, span = loss.row_at(episode.step), loss.to_rows(thresholds.recovery_steps)
    after = loss.values[row : row + span] - episode.mean
    start, later = float(np.median(after[: max(1, span // 10)])), float(np.median(after[span // 2 :]))
    moments = Suspect(
        "corrupted_moments", "possible", f"up by {format_number(start)} at once and by {format_number(later)} later"
    )
    data = Suspect("data_changed", "possible", f"up by {format_number(start)} at once, and it stays so")
    return [data, moments] if abs(start - later) < max(0.3 * later, 2 * episode.sigma) else [moments, data]
