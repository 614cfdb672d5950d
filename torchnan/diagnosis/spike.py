"""§2: loss spikes, recoverable or not, and what they come from."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from torchnan.diagnosis.charts import Gradients, Jumps, Repeats
from torchnan.diagnosis.episodes import REACH, Episode, episodes
from torchnan.diagnosis.run import Run
from torchnan.diagnosis.run_context import Story, number
from torchnan.diagnosis.series import Series
from torchnan.diagnosis.thresholds import Thresholds
from torchnan.diagnosis.verdict import Suspect, words

COMMON = 0.05  # a repeat that is found beside a spike by chance more often than that says nothing
HALF = 0.5
OUT_OF_TURN = 5.0  # surprise of a gradient norm that is large, if not as large as asked for
FACTOR_OUT_OF_TURN = 10.0


@dataclasses.dataclass(frozen=True)
class Panels:
    """What is looked at beside the loss."""

    jumps: Jumps
    repeats: Repeats
    gradients: Gradients


def find(run: Run, panels: Panels, thresholds: Thresholds) -> list[Episode]:
    """Where the loss went up at once, by more than chance."""
    loss = Series.of(run, "loss")
    repeated = (
        np.isin(loss.step, panels.repeats.step) if panels.repeats.share < COMMON * 4 else np.zeros(len(loss), bool)
    )
    large = panels.gradients.step[panels.gradients.ratio > thresholds.grad_factor]
    rare = panels.repeats.step if panels.repeats.share < COMMON else panels.repeats.step[:0]
    places = np.unique(np.concatenate([panels.jumps.step, rare, large]))
    return episodes(loss, repeated, places, thresholds)


def walk(run: Run, found: list[Episode], panels: Panels, story: Story, thresholds: Thresholds) -> None:
    """Q2.1 to Q2.4, for each episode."""
    loss = Series.of(run, "loss")
    asked = f"Is a loss above the mean by {thresholds.spike_sigma:g} sigma, and by more than chance?"
    if not found:
        few = "" if len(loss) > loss.window(thresholds) else f"; {len(loss)} rows are too few to tell"
        story.ask("Q2.1", asked, "no", f"over {thresholds.spike_window} steps{few}")
        return
    for episode in found:
        above = (episode.loss - episode.mean) / episode.sigma if episode.sigma else np.inf
        told = f"step {episode.step:,}: {number(episode.loss)} is mean {number(episode.mean)} + {above:.1f} sigma"
        story.ask("Q2.1", asked, "yes", told)
        back = {"recovered": "yes", "persistent": "no", "open": "not known yet"}[episode.state]
        within = f"mean + {thresholds.recovery_sigma:g} sigma within {thresholds.recovery_steps} steps"
        story.ask("Q2.2", f"Does it come back to {within}?", back, _came_back(episode))
        kind, last = ("persistent_elevation", "Q2.4") if episode.state == "persistent" else ("spike", "Q2.3")
        suspects = _suspects(run, loss, episode, panels, thresholds)
        story.ask(last, "What does it come from?", words(suspects[0].cause), suspects[0].evidence)
        story.find(
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
            recovered={"recovered": "yes", "persistent": "no", "open": "not known yet"}[episode.state],
        )


def _came_back(episode: Episode) -> str:
    if episode.state == "recovered":
        return f"after step {episode.last:,}"
    return f"it is {episode.shift:.1f} deviations up" if episode.state == "persistent" else "the log ends before"


def _suspects(run: Run, loss: Series, episode: Episode, panels: Panels, thresholds: Thresholds) -> list[Suspect]:
    """The likeliest first: a schedule or a loader at fault is a fact, and explains a large gradient."""
    found = [_jump(loss, episode, panels.jumps), _repeat(loss, episode, panels.repeats)]
    found += [_gradient(loss, episode, panels.gradients, thresholds)]
    if episode.state == "persistent":
        found += _of_a_lasting_one(run, loss, episode, thresholds)
    elif episode.single and not any(found):
        told = "only that step's loss is high: the weights are fine, the batch is not like the others"
        found.append(Suspect("unknown", "possible", told))
    known = [suspect for suspect in found if suspect is not None]
    return known or [Suspect("unknown", "possible", "learning rate, batches and gradient norms show nothing")]


def _near(loss: Series, episode: Episode) -> tuple[int, int]:
    """Steps in which the cause must be: rows may be far apart."""
    reach = max(REACH, round(2 * loss.stride))
    return episode.step - reach, episode.step + round(loss.stride) - 1


def _jump(loss: Series, episode: Episode, jumps: Jumps) -> Suspect | None:
    first, last = _near(loss, episode)
    near = np.flatnonzero((jumps.step >= first) & (jumps.step <= last))
    if not len(near):
        return None
    i = near[np.argmax(jumps.new[near] - jumps.old[near])]
    told = f"the learning rate jumps from {number(jumps.old[i])} to {number(jumps.new[i])} at step {jumps.step[i]:,}"
    return Suspect("lr_discontinuity", "likely", told)


def _repeat(loss: Series, episode: Episode, repeats: Repeats) -> Suspect | None:
    """Also shortly after it: a batch that is served twice spikes at the first time, too."""
    first, last = _near(loss, episode)
    near = np.flatnonzero((repeats.step >= first) & (repeats.step <= last + REACH))
    others = (len(repeats.step) - len(near)) / max(1, len(loss))
    if not len(near) or 1 - (1 - others) ** loss.rows_of(2 * REACH) > max(COMMON, _stuck(near, loss, others)):
        return None
    i = near[0]
    told = f"the batch of step {repeats.step[i]:,} is that of step {repeats.earlier[i]:,}"
    told += f"; repeats: {len(near)} so near the spike, {others:.2%} of all batches elsewhere"
    return Suspect("duplicate_batch", "likely", told)


def _stuck(near: NDArray[np.int64], loss: Series, others: float) -> float:
    """The chance that is allowed. A loader that is stuck makes its own share large: half of the rows beside the spike,
    and not of all, are enough."""
    return 1.0 if len(near) >= loss.rows_of(REACH) / 2 and others < HALF else 0.0


def _gradient(loss: Series, episode: Episode, gradients: Gradients, thresholds: Thresholds) -> Suspect | None:
    at = np.arange(*np.searchsorted(gradients.step, [episode.step, episode.peak + 1]))
    if not len(at):
        return None
    with np.errstate(invalid="ignore"):
        i = at[np.argmax(np.nan_to_num(gradients.ratio[at], nan=0.0))]
    told = f"the gradient norm of step {gradients.step[i]:,} is {gradients.ratio[i]:.1f} times its rolling mean"
    if gradients.ratio[i] > thresholds.grad_factor:
        return Suspect("long_tail_batch", "likely", told)
    if (
        gradients.surprise[i] > OUT_OF_TURN
        and gradients.ratio[i] > FACTOR_OUT_OF_TURN
        and episode.state != "persistent"
    ):
        return Suspect("long_tail_batch", "possible", f"{told}, less than {thresholds.grad_factor:g} but out of turn")
    return None


def _of_a_lasting_one(run: Run, loss: Series, episode: Episode, thresholds: Thresholds) -> list[Suspect]:
    """New data show in full at once and stay; damaged weights go up over some steps, and heal."""
    row, span = loss.before(episode.step), loss.rows_of(thresholds.recovery_steps)
    after = loss.values[row : row + span] - episode.mean
    start, later = float(np.median(after[: max(1, span // 10)])), float(np.median(after[span // 2 :]))
    moments = Suspect("corrupted_moments", "possible", f"up by {number(start)} at once and by {number(later)} later")
    data = Suspect("data_changed", "possible", f"up by {number(start)} at once, and it stays so")
    return [data, moments] if abs(start - later) < max(0.3 * later, 2 * episode.sigma) else [moments, data]
