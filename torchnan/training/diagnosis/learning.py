"""Section 5 of the tree: does the training learn anything, and only the training?"""

from __future__ import annotations

import math

import numpy as np

from torchnan.training.diagnosis.arrays import FloatArray
from torchnan.training.diagnosis.diagnosis_builder import DiagnosisBuilder
from torchnan.training.diagnosis.formatting import format_number
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.series import Series
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Suspect

FLAT = 0.01  # a loss that falls by no more than this share does not fall
CHANCE = 0.005  # share of ln(k) within which a loss is that of guessing among k
CLASSES = (*range(2, 21), 50, 100, 200, 256, 365, 1000, 10_000)  # also sizes of common vocabularies
VOCABULARIES = (30_522, 32_000, 32_768, 49_152, 50_257, 50_265, 50_304, 65_536, 100_277, 128_256, 151_936, 256_000)
MIN_EVALUATIONS = 6
OVERFITTED = 0.03  # share by which the evaluation loss rises above its minimum
MIN_TAU = 0.5  # Kendall's tau of the evaluation loss after its minimum


def evaluate(run: Run, diagnosis: DiagnosisBuilder, thresholds: Thresholds) -> None:
    """Answers Q5.1 to Q5.3 for a whole run."""
    loss = Series.from_run(run, "loss")
    if len(loss) >= thresholds.least_rows and len(loss) == run.column("loss").given.sum():
        _learns(run, loss, diagnosis, thresholds)
        _has_gradients(run, diagnosis, thresholds)
    _overfits(run, loss, diagnosis)


def _learns(run: Run, loss: Series, diagnosis: DiagnosisBuilder, thresholds: Thresholds) -> None:
    question = "Does the loss fall at all?"
    start, end = _ends(loss.values)
    text = f"from {format_number(start)} to {format_number(end)}"
    if start - end > FLAT * abs(start) or end > start * (1 + 2 * FLAT):
        diagnosis.answer("Q5.1", question, "yes" if end < start else "it rises", text)
        return
    suspects: list[Suspect] = []
    rate = run.column("lr")
    zeros = rate.given & (rate.values == 0)
    if zeros.sum() >= thresholds.least_rows and 2 * zeros.sum() > rate.given.sum():
        seen = f"the learning rate is 0 in {zeros.sum():,} of {rate.given.sum():,} rows"
        suspects.append(Suspect("lr_zero", "certain", seen))
    if (loss.values == loss.values[0]).all():
        suspects.append(Suspect("unknown", "possible", f"the loss is {loss.values[0]:g} in each of {len(loss):,} rows"))
    elif (classes := _guessed_classes(loss.values)) is not None:
        seen = f"the loss stays at {format_number(end)}, which is ln({classes:,}): that of guessing among {classes:,}"
        suspects.append(Suspect("chance_level", "likely", seen))
    diagnosis.answer("Q5.1", question, "no", text)
    if suspects:
        steps = int(loss.step[0]), int(loss.step[-1])
        diagnosis.add_verdict("not_learning", suspects, steps, "Q5.1", loss_first=start, loss_last=end)


def _ends(values: FloatArray) -> tuple[float, float]:
    """Returns the level of the first and of the last tenth."""
    part = max(3, len(values) // 10)
    return float(np.median(values[:part])), float(np.median(values[-part:]))


def _guessed_classes(values: FloatArray) -> int | None:
    """Returns k if the whole run has the loss of guessing among k classes."""
    levels = [float(np.median(part)) for part in np.array_split(values, 5)]
    known: tuple[int, ...] = (*CLASSES, *VOCABULARIES)
    nearest = min(known, key=lambda k: abs(float(np.median(levels)) - math.log(k)))
    return nearest if all(abs(level - math.log(nearest)) <= CHANCE * math.log(nearest) for level in levels) else None


def _has_gradients(run: Run, diagnosis: DiagnosisBuilder, thresholds: Thresholds) -> None:
    norm = Series.from_run(run, "grad_norm")
    if not len(norm):
        return
    zero = norm.values == 0
    live = np.flatnonzero(~zero)
    first = int(live[-1]) + 1 if len(live) else 0
    dead = len(norm) - first
    question = "Are the gradients zero to the end?"
    if dead < thresholds.least_rows:
        diagnosis.answer("Q5.2", question, "no")
        return
    text = f"the gradient norm is 0 in the last {dead:,} of {len(norm):,} rows"
    diagnosis.answer("Q5.2", question, "yes", text)
    suspects = [Suspect("no_gradient", "certain", text)]
    steps = int(norm.step[first]), int(norm.step[-1])
    diagnosis.add_verdict("dead_gradients", suspects, steps, "Q5.2", confidence="certain", rows=dead)


def _overfits(run: Run, loss: Series, diagnosis: DiagnosisBuilder) -> None:
    """Compares the evaluation loss with its minimum, while the training loss continues to fall."""
    evaluation = Series.from_run(run, "eval_loss")
    if len(evaluation) < MIN_EVALUATIONS or len(loss) < MIN_EVALUATIONS:
        return
    from scipy.stats import kendalltau

    question = "Does the evaluation loss rise while that of the training falls?"
    smooth = np.convolve(evaluation.values, np.full(3, 1 / 3), "valid")
    best = int(smooth.argmin()) + 1
    after = evaluation.values[best:]
    low, high = float(evaluation.values[best - 1 : best + 2].mean()), float(np.median(after[-3:]))
    step = int(evaluation.step[best])
    before = loss.values[max(0, loss.row_at(step) - 10) : loss.row_at(step) + 1]
    falls = len(before) > 0 and float(np.median(loss.values[-10:])) < float(np.median(before))
    rises = len(after) >= 4 and high - low > OVERFITTED * abs(low)
    tau = float(kendalltau(np.arange(len(after)), after).statistic) if rises else 0.0
    text = f"from {format_number(low)} at step {step:,} to {format_number(high)}"
    if not (rises and falls and tau >= MIN_TAU):
        diagnosis.answer("Q5.3", question, "no", text)
        return
    diagnosis.answer("Q5.3", question, "yes", text)
    suspects = [Suspect("memorised", "likely", f"the evaluation loss rises {text}, and the training loss falls")]
    diagnosis.add_verdict(
        "overfitting", suspects, (step, int(run.step[-1])), "Q5.3", eval_loss_low=low, eval_loss_high=high, tau=tau
    )
