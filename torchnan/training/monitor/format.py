"""Formats verdicts, forecasts and findings for warnings and for the log."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchnan.config.text import printable
from torchnan.detection.finding import Finding
from torchnan.training.diagnosis import Forecast, Verdict
from torchnan.training.diagnosis.formatting import display_name, format_number
from torchnan.training.storage.jsonl import sanitize_text


def verdict_text(verdict: Verdict) -> str:
    """Returns a verdict as text for a person."""
    evidence = ", ".join(f"{name} {_format_value(value)}" for name, value in verdict.evidence.items())
    cause = "" if verdict.cause in ("none", "unknown") else f": {display_name(verdict.cause)}"
    rows = [("evidence", evidence), ("branch", verdict.branch), ("remedy", verdict.remedy), ("check", verdict.check)]
    kind = display_name(verdict.kind)
    lines = [f"torchnan: {kind} from step {verdict.first_step} on{cause} ({verdict.confidence})"]
    return "\n".join([*lines, *(f"  {name:<9} {printable(text, 1000)}" for name, text in rows if text)])


def _format_value(value: Any) -> str:
    return format_number(value) if isinstance(value, float) else str(value)


def to_dict(result: Verdict | Forecast) -> dict[str, Any]:
    """Returns a verdict or a forecast as it is written to the log."""
    fields: dict[str, Any] = sanitize_text(dataclasses.asdict(result))
    if isinstance(result, Verdict):
        fields["certainty"] = result.certainty  # of the cause
    return fields


def finding_summary(finding: Finding) -> dict[str, Any]:
    """Returns the origin of a non-finite value and its inputs, as they are written to the log."""
    inputs = [
        {"name": i.name, "dtype": i.dtype, "shape": list(i.shape), "absmax": i.absmax, "min": i.min, "max": i.max}
        | {"nan": i.nan, "inf": i.posinf + i.neginf}
        for i in finding.inputs[:4]
    ]
    fields = {
        name: getattr(finding, name) for name in ("kind", "origin", "op", "node", "module", "name", "constant", "phase")
    }
    fields.update(dtype=finding.dtype, hint=finding.hint, file=finding.file, line=finding.line, inputs=inputs)
    short: dict[str, Any] = sanitize_text(fields)
    return short
