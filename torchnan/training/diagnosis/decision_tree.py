"""Walks the decision tree through a run."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np

from torchnan.config.text import printable
from torchnan.training.diagnosis import learning, nonfinite, precision, silent_divergence, spike
from torchnan.training.diagnosis.diagnosis_builder import DiagnosisBuilder
from torchnan.training.diagnosis.divergence import Rise
from torchnan.training.diagnosis.episodes import Episode
from torchnan.training.diagnosis.headroom import forecasts
from torchnan.training.diagnosis.loss_scale import ScaleHistory, scale_history
from torchnan.training.diagnosis.masked import revealed
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.signals import Signals
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Diagnosis, Kind, Suspect, Verdict

MAX_LEFT_OUT = 0.01  # share of the rows
MAX_UNREAD = 5  # rows at the end that may lack a loss, because an evaluation may follow the last one
WORST_FIRST: tuple[Kind, ...] = get_args(Kind)


def diagnose(
    run: Run,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - it is frozen
    *,
    is_whole: bool = True,
) -> Diagnosis:
    """Diagnoses a run, and each part of a run that has several.

    Args:
        run: a run of at least one row.
        thresholds: limits of the decision tree.
        is_whole: whether the run is complete from its beginning. For the last rows of a running training, the tree
            does not ask whether they learn anything.

    Raises:
        ValueError: the run has no rows.
    """
    if not len(run):
        raise ValueError(f"there is nothing to diagnose: {printable(run.source or 'the run')} has no rows.")
    if run.parts:
        return _combined({name: diagnose(part, thresholds, is_whole=is_whole) for name, part in run.parts.items()})
    run, masked = revealed(run)
    scale = scale_history(run, thresholds)
    diagnosis = _walk(run, masked, scale, thresholds, is_whole=is_whole)
    return Diagnosis(_ranked(diagnosis, run, scale, thresholds), diagnosis.questions, forecasts(run, thresholds))


def problems(run: Run, thresholds: Thresholds) -> Diagnosis:
    """Diagnoses the last rows of a running training like :func:`diagnose`, except that there is no verdict if
    nothing is wrong."""
    run, masked = revealed(run)
    diagnosis = _walk(run, masked, scale_history(run, thresholds), thresholds, is_whole=False)
    return Diagnosis(sorted(diagnosis.verdicts, key=_badness), diagnosis.questions, forecasts(run, thresholds))


def _walk(run: Run, masked: str, scale: ScaleHistory, thresholds: Thresholds, *, is_whole: bool) -> DiagnosisBuilder:
    diagnosis = DiagnosisBuilder()
    signals = Signals(run, thresholds)

    nonfinite.evaluate(run, scale, signals, diagnosis, masked)
    decided = bool(diagnosis.verdicts)

    episodes = spike.find(run, signals, thresholds)
    up = silent_divergence.find(run, episodes, signals, thresholds)
    spikes, symptoms = _split_off_symptoms(episodes, up)
    spike.evaluate(run, spikes, signals, diagnosis, thresholds)

    if not decided:  # section 1 covers section 3 where the dtype requires it
        precision.evaluate(run, scale, diagnosis, thresholds)
    silent_divergence.evaluate(run, up, signals, symptoms, diagnosis, thresholds)
    if is_whole:
        learning.evaluate(run, diagnosis, thresholds)
    return diagnosis


def _combined(found: dict[str, Diagnosis]) -> Diagnosis:
    """Returns the verdicts of all parts, the worst first. Only those of the worst kind say that nothing is wrong."""
    by_badness = sorted(found, key=lambda name: WORST_FIRST.index(found[name].verdicts[0].kind))
    worst = found[by_badness[0]]
    verdicts = [
        dataclasses.replace(verdict, evidence={**verdict.evidence, "part": name})
        for name in by_badness
        for verdict in found[name].verdicts
        if verdict.is_bad or (verdict.kind == "undetermined" and worst.verdicts[0].kind != "healthy")
    ]
    verdicts.sort(key=lambda verdict: WORST_FIRST.index(verdict.kind))
    forecasts_of_all = [forecast for name in by_badness for forecast in found[name].forecasts]
    return Diagnosis(verdicts or worst.verdicts[:1], worst.walk, forecasts_of_all, by_badness[0])


def _split_off_symptoms(episodes: list[Episode], up: Rise | None) -> tuple[list[Episode], int]:
    """Returns the spikes before a slow rise, and the number of those within it, which are its symptoms."""
    if up is None:
        return episodes, 0
    spikes = [episode for episode in episodes if episode.last < up.first]
    return spikes, len(episodes) - len(spikes)


def _badness(verdict: Verdict) -> tuple[int, bool, float]:
    height = float(verdict.evidence.get("surprise", 0.0))
    return WORST_FIRST.index(verdict.kind), verdict.cause == "unknown", -height


def _ranked(diagnosis: DiagnosisBuilder, run: Run, scale: ScaleHistory, thresholds: Thresholds) -> list[Verdict]:
    """Returns the verdicts, the worst first. If there are none, returns that the run is healthy, or why that is
    unknown."""
    unread = _unread(run)
    missing = unread if diagnosis.verdicts else [*_missing(run, scale, thresholds), *unread]
    if diagnosis.verdicts and not missing:
        return sorted(diagnosis.verdicts, key=_badness)
    steps = int(run.step[0]), int(run.step[-1])
    loss = run.column("loss")
    last = loss.values[loss.given][-100:]
    suspects = [Suspect("none", "likely", "no question of the tree leads to trouble")]
    if missing:
        suspects = [Suspect("unknown", "possible", reason) for reason in missing]
    diagnosis.add_verdict(
        "undetermined" if missing else "healthy",
        suspects,
        steps,
        " -> ".join(dict.fromkeys(question.number for question in diagnosis.questions)),
        rows=len(run),
        loss=float(np.median(last)) if len(last) else None,
    )
    return sorted(diagnosis.verdicts, key=_badness)


def _missing(run: Run, scale: ScaleHistory, thresholds: Thresholds) -> list[str]:
    """Returns why a run may be unhealthy although nothing was found."""
    loss = run.column("loss")
    if not loss.given.any():
        return ["there is no loss in the log"]
    reasons = []
    read = run.step[loss.given]
    end = max(int(run.step[-1]), run.last_seen or 0)
    apart = float(np.median(np.diff(read))) if len(read) > 1 else 1.0
    if end - read[-1] > MAX_UNREAD * apart:
        reasons.append(f"the loss ends at step {read[-1]:,}, and the log at step {end:,}")
    if len(read) <= thresholds.least_rows:
        reasons.append(
            f"{len(read):,} rows with a loss are too few to tell: more than {thresholds.least_rows} are needed"
        )
    if absent := _absent_losses(run):
        reasons.append(f"the loss is missing in {absent:,} rows that have the other numbers of a step")
    others = {name: column for name, column in run.columns.items() if name not in ("loss", "grad_norm", "skipped")}
    others |= {f"{kind} of {name}": one for kind, named in run.groups.items() for name, one in named.items()}
    bad = {name: int(column.bad.sum()) for name, column in others.items()}
    if any(bad.values()):
        named = [f"{name} ({count:,} rows)" for name, count in bad.items() if count]
        reasons.append(f"numbers beside the loss are not finite: {', '.join(named[:5])}")
    if len(scale.overflows) and scale.changes == "unknown":
        reasons.append(
            f"the gradient norm is not finite at {len(scale.overflows):,} steps, and no loss scale is in the log: "
            "a scaler may have skipped them, or not"
        )
    return reasons


def _unread(run: Run) -> list[str]:
    """Returns why the log may show more than the run does."""
    reasons = []
    if run.unread_losses:
        reasons.append(f"{run.unread_losses:,} losses are not numbers")
    if run.left_out > MAX_LEFT_OUT * (len(run) + run.left_out):
        reasons.append(f"{run.left_out:,} rows of the log are left out, and {len(run):,} are read")
    if run.left_out_nonfinite:
        reasons.append(f"{run.left_out_nonfinite:,} of the numbers that are left out are not finite")
    return reasons


def _absent_losses(run: Run) -> int:
    """Returns how many rows of the training have no loss, if as good as every row has one; 0 if they are few."""
    loss, others = run.column("loss"), [run.column(name).given for name in ("grad_norm", "lr", "loss_scale")]
    training = np.any(others, axis=0)
    absent = int((training & ~loss.given).sum())
    if absent <= MAX_LEFT_OUT * training.sum():
        return 0
    steps = [run.step[loss.given], run.step[training]]
    apart = {float(np.median(np.diff(step))) for step in steps if len(step) > 1}
    return absent if len(apart) == 1 else 0
