"""Walks the decision tree through a run."""

from __future__ import annotations

from typing import get_args

import numpy as np

from torchnan.config.text import printable
from torchnan.diagnosis import nonfinite, precision, silent_divergence, spike
from torchnan.diagnosis.diagnosis_builder import DiagnosisBuilder
from torchnan.diagnosis.divergence import Rise
from torchnan.diagnosis.episodes import Episode
from torchnan.diagnosis.headroom import forecasts
from torchnan.diagnosis.loss_scale import scale_history
from torchnan.diagnosis.run import Run
from torchnan.diagnosis.signals import Signals
from torchnan.diagnosis.thresholds import Thresholds
from torchnan.diagnosis.verdict import Diagnosis, Kind, Suspect, Verdict

WORST_FIRST: tuple[Kind, ...] = get_args(Kind)


def diagnose(run: Run, thresholds: Thresholds = Thresholds()) -> Diagnosis:  # noqa: B008 - it is frozen
    """Diagnoses a run.

    Args:
        run: a run of at least one row.
        thresholds: limits of the decision tree.

    Raises:
        ValueError: the run has no rows.
    """
    if not len(run):
        raise ValueError(f"there is nothing to diagnose: {printable(run.source or 'the run')} has no rows.")
    diagnosis = DiagnosisBuilder()
    scale = scale_history(run, thresholds)
    signals = Signals.from_run(run, thresholds)

    nonfinite.evaluate(run, scale, signals.jumps, diagnosis)
    decided = bool(diagnosis.verdicts)

    episodes = spike.find(run, signals, thresholds)
    up = silent_divergence.find(run, episodes, signals.jumps, thresholds)
    spikes, symptoms = _split_off_symptoms(episodes, up)
    spike.evaluate(run, spikes, signals, diagnosis, thresholds)

    if not decided:  # section 1 covers section 3 where the dtype requires it
        precision.evaluate(run, scale, diagnosis, thresholds)
    silent_divergence.evaluate(run, up, signals.jumps, symptoms, diagnosis, thresholds)

    return Diagnosis(_ranked(diagnosis, run), diagnosis.questions, forecasts(run, thresholds))


def _split_off_symptoms(episodes: list[Episode], up: Rise | None) -> tuple[list[Episode], int]:
    """Returns the spikes before a slow rise, and the number of those within it, which are its symptoms."""
    if up is None:
        return episodes, 0
    spikes = [episode for episode in episodes if episode.last < up.first]
    return spikes, len(episodes) - len(spikes)


def _ranked(diagnosis: DiagnosisBuilder, run: Run) -> list[Verdict]:
    """Returns the verdicts, the worst first; a healthy one if there are none."""

    def badness(verdict: Verdict) -> tuple[int, bool, float]:
        height = float(verdict.evidence.get("surprise", 0.0))
        return WORST_FIRST.index(verdict.kind), verdict.cause == "unknown", -height

    if diagnosis.verdicts:
        return sorted(diagnosis.verdicts, key=badness)
    steps = int(run.step[0]), int(run.step[-1])
    loss = run.column("loss")
    last = loss.values[loss.given][-100:]
    suspects = [Suspect("none", "likely", "no question of the tree leads to trouble")]
    diagnosis.add_verdict(
        "healthy",
        suspects,
        steps,
        " -> ".join(dict.fromkeys(question.number for question in diagnosis.questions)),
        rows=len(run),
        loss=float(np.median(last)) if len(last) else None,
    )
    return diagnosis.verdicts
