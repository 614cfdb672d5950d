"""Section 1 of the tree: is the loss NaN or Inf, in which dtype, and what caused it?"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from torchnan.training.diagnosis.arrays import IntArray
from torchnan.training.diagnosis.diagnosis_builder import DiagnosisBuilder
from torchnan.training.diagnosis.episodes import CAUSE_STEPS
from torchnan.training.diagnosis.formatting import display_name, format_number
from torchnan.training.diagnosis.loss_scale import ScaleHistory
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.series import Series
from torchnan.training.diagnosis.signals import Signals
from torchnan.training.diagnosis.verdict import Cause, Suspect

LOGARITHMS = {"log", "log2", "log10", "log1p", "xlogy", "special_xlog1py"}
QUOTIENTS = {"div", "divide", "true_divide", "reciprocal", "mean", "nll_loss", "nll_loss_forward", "nll_loss2d_forward"}
MAX_CAUSES = 20  # causes with a separate verdict

# The cause of a value that was not made by an operation, by the origin of its finding.
CAUSE_OF_ORIGIN: dict[str, Cause] = {
    "input": "data",
    "parameter": "parameter",
    "buffer": "parameter",
    "uninit": "uninitialised",
}


@dataclasses.dataclass(frozen=True)
class _Failure:
    """Rows with a non-finite loss of one cause, and its finding; ``last`` ends the first uninterrupted stretch."""

    rows: IntArray
    last: int
    finding: dict[str, Any] | None


def evaluate(run: Run, scale: ScaleHistory, signals: Signals, diagnosis: DiagnosisBuilder, masked: str = "") -> None:
    """Answers Q1.1 to Q1.4 for each cause; in float16, section 3 decides (Q3.3).

    Args:
        masked: the evidence that losses written as 0 were not finite; ``""`` if there is none.
    """
    loss = run.column("loss")
    bad = np.flatnonzero(loss.bad)
    question = "Is the loss NaN or Inf at any step?"
    if not len(bad):
        diagnosis.answer("Q1.1", question, "no", f"{loss.given.sum():,} finite")
        _evaluate_evaluation(run, diagnosis)
        return
    if masked:
        _evaluate_masked(run, bad, masked, diagnosis)
        return
    first = f"{loss.values[bad[0]]} at step {run.step[bad[0]]:,}"
    diagnosis.answer("Q1.1", question, "yes", f"{first}, {len(bad):,} in all")
    diagnosis.answer(
        "Q1.2",
        "Which dtype regime?",
        scale.dtype or "unknown",
        "by the loss scale" if scale.dtype and scale.inferred else "",
    )
    for failure in _failures(run, bad)[:MAX_CAUSES]:
        _evaluate_failure(run, failure, scale, signals, diagnosis)


def _evaluate_masked(run: Run, bad: IntArray, masked: str, diagnosis: DiagnosisBuilder) -> None:
    """Adds the verdict for a non-finite loss that is not written as such."""
    first, last = int(run.step[bad[0]]), int(run.step[bad[-1]])
    question = "Is the loss NaN or Inf at any step?"
    diagnosis.answer("Q1.1", question, "yes", f"{masked}: from step {first:,} on, {len(bad):,} in all")
    suspects = [Suspect("unknown", "possible", masked)]
    is_seen = run.column("grad_norm").bad.any()
    diagnosis.add_verdict(
        "nonfinite",
        suspects,
        (first, last),
        "Q1.1",
        confidence="certain" if is_seen else "likely",
        loss="0, in place of a value that is not finite",
        nonfinite_steps=len(bad),
    )


def _evaluate_evaluation(run: Run, diagnosis: DiagnosisBuilder) -> None:
    """Adds the verdict of an evaluation loss that is not finite at the end."""
    column = run.column("eval_loss")
    given = np.flatnonzero(column.given)
    if not len(given) or np.isfinite(column.values[given[-1]]):
        return
    finite = given[np.isfinite(column.values[given])]
    first = given[given > finite[-1]][0] if len(finite) else given[0]
    value = column.values[given[-1]]
    text = f"the evaluation loss is {value} from step {run.step[first]:,} on, and that of the training is finite"
    diagnosis.answer("Q1.1", "Is the evaluation loss NaN or Inf at the end?", "yes", text)
    steps = int(run.step[first]), int(run.step[given[-1]])
    suspects = [Suspect("unknown", "possible", text)]
    diagnosis.add_verdict("nonfinite", suspects, steps, "Q1.1", confidence="certain", eval_loss=str(value))


def _evaluate_failure(
    run: Run, failure: _Failure, scale: ScaleHistory, signals: Signals, diagnosis: DiagnosisBuilder
) -> None:
    first, origin = int(run.step[failure.rows[0]]), failure.finding
    value = str(run.column("loss").values[failure.rows[0]])
    rerun = _rerun(run, first)
    gradient = _gradient_first(scale, first)
    regime = scale.dtype or "unknown"
    evidence: dict[str, Any] = {
        "loss": value,
        "nonfinite_steps": len(failure.rows),
        "dtype": regime,
        "origin": None if origin is None else describe_origin(origin),
        "place": None if origin is None else _place(origin),
        "finite_in_float32": rerun,
        "gradient_overflow_at": gradient,
    }
    steps = (min(first, gradient) if gradient is not None else first, int(run.step[failure.last]))
    text = "not in the log" if origin is None else describe_origin(origin)
    diagnosis.answer("Q1.3", "Which operation made it?", "known" if origin else "unknown", text)
    if _is_overflow(scale, origin, rerun, gradient):
        _overflow(scale, origin, rerun, steps, first, diagnosis, evidence)
        return
    suspects = _suspects(run, value, first, origin, rerun, gradient, signals, regime)
    diagnosis.answer("Q1.4", "What caused it?", display_name(suspects[0].cause), suspects[0].evidence)
    branch = "Q1.1 -> Q1.2 -> Q1.3 -> Q1.4"
    diagnosis.add_verdict("nonfinite", suspects, steps, branch, confidence="certain", **evidence)


def _failures(run: Run, bad: IntArray) -> list[_Failure]:
    """Returns the non-finite rows by cause, the earliest first. A stretch of rows without a gap has one cause, unless
    findings within it name others."""
    own = _findings_by_step(run)
    starts = np.diff(bad) > 1
    starts |= np.array([int(step) in own for step in run.step[bad[1:]]], dtype=bool)
    by_cause: dict[object, list[tuple[IntArray, dict[str, Any] | None]]] = {}
    for rows in np.split(bad, np.flatnonzero(starts) + 1):
        finding = own.get(int(run.step[rows[0]])) or _near(run, int(run.step[rows[0]]), bad)
        by_cause.setdefault(_identity(finding), []).append((rows, finding))
    failures = []
    for stretches in by_cause.values():
        rows = np.concatenate([rows for rows, _ in stretches])
        gaps = np.flatnonzero(np.diff(rows) > 1)
        failures.append(_Failure(rows, int(rows[gaps[0] if len(gaps) else -1]), stretches[0][1]))
    return failures


def _findings_by_step(run: Run) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for event in run.findings:
        found.setdefault(event["step"], event["finding"])
    return found


def _near(run: Run, step: int, bad: IntArray) -> dict[str, Any] | None:
    """Returns the nearest finding within a few steps that does not belong to another non-finite loss."""
    others = set(run.step[bad].tolist())
    near = [event for event in run.findings if abs(event["step"] - step) <= CAUSE_STEPS and event["step"] not in others]
    return min(near, key=lambda event: abs(event["step"] - step))["finding"] if near else None


def _identity(finding: dict[str, Any] | None) -> object:
    if finding is None:
        return None
    names = ("origin", "op", "node", "module", "name", "file", "line", "text")
    return tuple(str(finding.get(name)) for name in names)


def describe_origin(finding: dict[str, Any]) -> str:
    """Returns the origin from a finding: operation, location, and reason."""
    if "op" not in finding:  # from another rank, in one line
        return str(finding.get("text") or "")
    place = _place(finding)
    is_constant, module = bool(finding.get("constant")), finding.get("module")
    where = [module and f"{'first used ' if is_constant else ''}in {module}", place and f"at {place}"]
    parts = [_maker(finding), *(reversed(where) if is_constant else where), finding.get("dtype"), finding.get("phase")]
    text = ", ".join(str(part) for part in parts if part)
    return f"{text}, because {finding['hint']}" if finding.get("hint") else text


def _maker(finding: dict[str, Any]) -> str:
    op, name = str(finding.get("op") or ""), str(finding.get("name") or "")
    kind = str(finding.get("origin") or "op")
    if kind in ("parameter", "buffer"):
        return f"{kind} {name}, first read by {op}" if name else f"a {kind}, first read by {op}"
    return {
        "input": _constant(op) if finding.get("constant") else f"an external tensor, first used by {op}",
        "uninit": f"memory from {op} that nothing has written",
        "foreign": f"something outside PyTorch's dispatcher, first read by {op}",
    }.get(kind, op)


def _constant(op: str) -> str:
    return "a constant, given to torch.tensor" if op == "aten::lift_fresh" else f"a constant, written by {op}"


def _place(finding: dict[str, Any]) -> str | None:
    file, line = finding.get("file"), finding.get("line")
    return f"{file}:{line}" if file and line else None


def _rerun(run: Run, first: int) -> bool | None:
    near = [event for event in run.reruns if abs(event["step"] - first) <= CAUSE_STEPS]
    return bool(near[0]["finite"]) if near else None


def _gradient_first(scale: ScaleHistory, first: int) -> int | None:
    """Returns the first of the overflows that lead up to the loss."""
    before = scale.overflows[scale.overflows < first]
    if not len(before) or first - before[-1] > CAUSE_STEPS:
        return None
    pauses = np.flatnonzero(np.diff(before) > CAUSE_STEPS)
    return int(before[pauses[-1] + 1 if len(pauses) else 0])


def _is_overflow(scale: ScaleHistory, origin: dict[str, Any] | None, rerun: bool | None, gradient: int | None) -> bool:
    """Answers Q3.3: from the origin if no operation made the value, else from the rerun, the origin, or the dtype.

    In float16 it is an overflow. If the dtype is unknown but there is a loss scale, it is one if the gradient
    overflowed first.
    """
    if origin is not None and str(origin.get("origin")) in CAUSE_OF_ORIGIN:
        return False
    if rerun is not None and scale.dtype not in ("float32", "bfloat16"):
        return rerun
    if origin is not None:
        half = "float16" in (origin.get("dtype"), scale.dtype)
        return half and _operation(origin) not in LOGARITHMS | QUOTIENTS
    if scale.dtype is None:
        return gradient is not None and scale.changes == "constant"
    return scale.dtype == "float16"


def _operation(origin: dict[str, Any]) -> str:
    return str(origin.get("op") or "").rpartition("::")[2].rstrip("_").partition(".")[0]


def _overflow(
    scale: ScaleHistory,
    origin: dict[str, Any] | None,
    rerun: bool | None,
    steps: tuple[int, int],
    first: int,
    diagnosis: DiagnosisBuilder,
    evidence: dict[str, Any],
) -> None:
    cause: Cause = "activation_overflow" if steps[0] == first else "gradient_overflow"
    if origin is not None:
        cause = "gradient_overflow" if origin.get("phase") == "backward" else "activation_overflow"
    where = "the loss, in the forward pass" if cause == "activation_overflow" else "the gradient, before the loss"
    diagnosis.answer(
        "Q3.1", "Is a gradient norm Inf or NaN?", "yes" if len(scale.overflows) else "no", f"first in {where}"
    )
    diagnosis.answer("Q3.2", "What does the loss scale show?", scale.changes, describe_scale(scale))
    if rerun is not None:
        diagnosis.answer("Q3.3", "Is the step finite in float32 with the same data?", "yes" if rerun else "no")
    suspects = [Suspect(cause, "certain" if rerun else "likely", f"the first non-finite value is in {where}")]
    branch = "Q1.1 -> Q1.2 -> Q3.1 -> Q3.2"
    if scale.changes == "constant" and steps[0] < first:
        off = Suspect("scaler_off", "likely", f"the loss scale is {format_number(scale.scale[0])} at every step")
        diagnosis.add_verdict("loss_scale_constant", [off, *suspects], steps, branch, **evidence)
    elif scale.collapsed and scale.collapsed[0] < first:
        diagnosis.add_verdict("loss_scale_collapse", suspects, (scale.collapsed[1], steps[1]), branch, **evidence)
    else:
        diagnosis.add_verdict("fp16_overflow", suspects, steps, branch + " -> Q3.3", **evidence)


def describe_scale(scale: ScaleHistory) -> str:
    """Describes the loss scale in words."""
    if scale.changes == "unknown":
        return "it is not in the log"
    first, smallest = (format_number(value) for value in scale.scale)
    return f"first {first}, smallest {smallest}, {len(scale.overflows):,} overflows"


def _suspects(
    run: Run,
    value: str,
    first: int,
    origin: dict[str, Any] | None,
    rerun: bool | None,
    gradient: int | None,
    signals: Signals,
    regime: str,
) -> list[Suspect]:
    found: list[Suspect] = []
    if origin is not None:
        found.append(_of_origin(origin))
    if rerun is False:
        found.append(Suspect("structural", "likely", "it is not finite in float32 either, with the same data"))
    jumps = signals.jumps
    near = jumps.step[(jumps.step >= first - 5 * CAUSE_STEPS) & (jumps.step <= first)]
    if len(near):
        found.append(Suspect("lr_discontinuity", "likely", f"the learning rate jumps at step {near[0]:,}"))
    if gradient is not None and origin is None:
        found.append(
            Suspect("gradient_overflow", "possible", f"the gradient is not finite at step {gradient:,} already")
        )
    if origin is None and not len(near) and not _explodes(run, first):
        found += _by_value(value, regime)
    return found or [Suspect("unknown", "possible", "the loss goes up before it; nothing in the log explains it")]


def _of_origin(origin: dict[str, Any]) -> Suspect:
    """Returns the suspect that a finding names. Observed facts are certain; conclusions from the operation alone are
    likely."""
    text = f"the finding names {describe_origin(origin)}"
    if (external := CAUSE_OF_ORIGIN.get(str(origin.get("origin")))) is not None:
        return Suspect(external, "certain", text)
    by_operation: dict[str, Cause] = {
        **dict.fromkeys(LOGARITHMS, "log_zero"),
        **dict.fromkeys(QUOTIENTS, "zero_by_zero"),
    }
    cause = by_operation.get(_operation(origin), "structural")
    return Suspect(cause, "certain" if cause == "structural" or origin.get("hint") else "likely", text)


def _explodes(run: Run, first: int) -> bool:
    """Returns whether the last losses before a step exceed all others."""
    values = Series.from_run(run, "loss", before=first).values
    return len(values) > 10 and bool(values[-3:].max() > 2 * abs(np.median(values)) + values[:-3].max())


def _by_value(value: str, regime: str) -> list[Suspect]:
    """Returns suspects for a loss that was fine one step before: -log(0) is Inf, and 0/0 is NaN."""
    zero = Suspect("log_zero", "possible", f"the loss is {value} at once, in {regime}: mostly log(0)")
    quotient = Suspect("zero_by_zero", "possible", f"the loss is {value} at once, in {regime}: mostly 0/0")
    return [zero, quotient] if "inf" in value else [quotient, zero]
