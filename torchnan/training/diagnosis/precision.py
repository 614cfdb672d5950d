"""Section 3 of the tree: gradients that overflow while the loss is finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchnan.training.diagnosis.diagnosis_builder import DiagnosisBuilder
from torchnan.training.diagnosis.formatting import format_number, format_steps
from torchnan.training.diagnosis.loss_scale import ScaleHistory
from torchnan.training.diagnosis.nonfinite import describe_scale
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Suspect

MAX_SKIPS = 25  # a scaler halves 2**16 to 1 in 16 steps
MIN_AT_END = 3

BRANCH = "Q1.1 -> Q2.1 -> Q3.1"


def evaluate(run: Run, scale: ScaleHistory, diagnosis: DiagnosisBuilder, thresholds: Thresholds) -> None:
    """Answers Q3.1 to Q3.3."""
    many = len(scale.overflows)
    overflowed = f"{many:,} steps: {format_steps(scale.overflows)}" if many else "0 steps"
    diagnosis.answer("Q3.1", "Is a gradient norm Inf or NaN?", "yes" if many else "no", overflowed)
    if not many and not scale.collapsed:
        return
    evidence: dict[str, Any] = {
        "dtype": scale.dtype or "unknown",
        "overflows": many,
        "loss_scale": describe_scale(scale),
    }
    seen = f"the gradient is not finite at {overflowed}" if many else f"the loss scale halves: {describe_scale(scale)}"
    gradient = Suspect("gradient_overflow", "likely", seen)
    if scale.dtype in ("float32", "bfloat16") and scale.changes != "dynamic":
        diagnosis.answer("Q3.2", "What does the loss scale show?", "there is none", f"the dtype is {scale.dtype}")
        steps = int(scale.overflows[0]), int(scale.overflows[-1])
        diagnosis.add_verdict("nonfinite", [gradient], steps, "Q1.1 -> Q1.2 -> Q1.4", **evidence)
        return
    diagnosis.answer("Q3.2", "What does the loss scale show?", _answer(scale), describe_scale(scale))
    if scale.changes == "unknown":
        _evaluate_without_scale(run, diagnosis, evidence)
        return
    if many and _is_constant(run, scale, thresholds):
        off = Suspect(
            "scaler_off", "likely", f"the loss scale is {format_number(scale.scale[0])} before and after overflows"
        )
        steps = int(scale.overflows[0]), int(scale.overflows[-1])
        diagnosis.add_verdict("loss_scale_constant", [off, gradient], steps, f"{BRANCH} -> Q3.2", **evidence)
    elif scale.collapsed:
        steps = scale.collapsed[1], int(run.step[-1])
        diagnosis.add_verdict("loss_scale_collapse", [gradient], steps, f"{BRANCH} -> Q3.2", **evidence)
    elif scale.without_known_trigger:
        first, count, last = scale.without_known_trigger
        text = f"{count} overflows from step {first:,} on at loss scales that had been fine"
        diagnosis.answer("Q3.3", "Is that more than the scaler's search for a scale?", "yes", text)
        found = [Suspect("gradient_overflow", "likely", text)]
        diagnosis.add_verdict("fp16_overflow", found, (first, last), f"{BRANCH} -> Q3.2 -> Q3.3", **evidence)
    else:
        text = "the scaler tries larger scales and goes back"
        diagnosis.answer("Q3.3", "Is that more than the scaler's search for a scale?", "no", text)


def _evaluate_without_scale(run: Run, diagnosis: DiagnosisBuilder, evidence: dict[str, Any]) -> None:
    """Adds a verdict if more gradients in a row are not finite than a scaler skips, or all up to the end."""
    norm = run.column("grad_norm")
    rows = np.flatnonzero(norm.given)
    bad = np.concatenate([[False], norm.bad[rows], [False]])
    begins, ends = np.flatnonzero(bad[1:] & ~bad[:-1]), np.flatnonzero(~bad[1:] & bad[:-1])
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        to_end = end == len(rows)
        if end - begin < (MIN_AT_END if to_end and begin else MAX_SKIPS):
            continue
        first, last = int(run.step[rows[begin]]), int(run.step[rows[end - 1]])
        text = f"the gradient norm is {norm.values[rows[begin]]} from step {first:,} to {last:,}"
        text += ", the last of the log" if to_end else f", {end - begin:,} rows"
        question = "Is that more than a scaler's search for a scale?"
        diagnosis.answer("Q3.3", question, "yes", text)
        found = [Suspect("unknown", "possible", text)]
        branch = f"{BRANCH} -> Q3.2 -> Q3.3"
        diagnosis.add_verdict("nonfinite", found, (first, last), branch, confidence="certain", **evidence)
        return


def _answer(scale: ScaleHistory) -> str:
    return f"collapsed at step {scale.collapsed[0]:,}" if scale.collapsed else scale.changes


def _is_constant(run: Run, scale: ScaleHistory, thresholds: Thresholds) -> bool:
    """Returns whether the scale ignores overflows; one in the last row would only halve it in the next."""
    return scale.changes == "constant" and bool(scale.overflows[0] < run.step[-1])
