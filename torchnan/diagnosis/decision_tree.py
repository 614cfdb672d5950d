"""The decision tree, from its first question to the verdicts."""

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
from torchnan.diagnosis.signals import gradients, jumps, repeats
from torchnan.diagnosis.thresholds import Thresholds
from torchnan.diagnosis.verdict import Diagnosis, Kind, Suspect, Verdict

WORST_FIRST: tuple[Kind, ...] = get_args(Kind)


def diagnose(run: Run, thresholds: Thresholds = Thresholds()) -> Diagnosis:  # noqa: B008 - it is frozen
    """Walks the tree through a run.

    Args:
        run: at least one row.
        thresholds: what counts as what.

    Raises:
        ValueError: the run has no rows.
    """
    if not len(run):
        raise ValueError(f"there is nothing to diagnose: {printable(run.source or 'the run')} has no rows.")
    diagnosis = DiagnosisBuilder()
    scale = scale_history(run, thresholds)
    jumped = jumps(run, thresholds)
    panels = spike.Signals(jumped, repeats(run, thresholds), gradients(run, thresholds))

    nonfinite.walk(run, scale, jumped, diagnosis)
    decided = bool(diagnosis.verdicts)

    found = spike.find(run, panels, thresholds)
    up = silent_divergence.find(run, found, jumped, thresholds)
    apart, symptoms = _split_off_symptoms(found, up, thresholds)
    spike.walk(run, apart, panels, diagnosis, thresholds)

    if not decided:  # §1 has gone through §3 where the dtype asks for it
        precision.walk(run, scale, diagnosis, thresholds)
    silent_divergence.walk(run, up, jumped, symptoms, diagnosis, thresholds)

    return Diagnosis(_ranked(diagnosis, run), diagnosis.questions, forecasts(run, thresholds))


def _split_off_symptoms(found: list[Episode], up: Rise | None, thresholds: Thresholds) -> tuple[list[Episode], int]:
    """Spikes of a loss that diverges are its symptoms."""
    if up is None:
        return found, 0
    apart = [episode for episode in found if episode.last < up.first]
    return apart, len(found) - len(apart)


def _ranked(diagnosis: DiagnosisBuilder, run: Run) -> list[Verdict]:
    def badness(verdict: Verdict) -> tuple[int, bool, float]:
        height = float(verdict.evidence.get("surprise", 0.0))
        return WORST_FIRST.index(verdict.kind), verdict.cause == "unknown", -height

    if diagnosis.verdicts:
        return sorted(diagnosis.verdicts, key=badness)
    steps = int(run.step[0]), int(run.step[-1])
    loss = run.column("loss")
    last = loss.values[loss.given][-100:]
    told = [Suspect("none", "likely", "no question of the tree leads to trouble")]
    diagnosis.add_verdict(
        "healthy",
        told,
        steps,
        " -> ".join(dict.fromkeys(question.number for question in diagnosis.questions)),
        rows=len(run),
        loss=float(np.median(last)) if len(last) else None,
    )
    return diagnosis.verdicts
