"""Diagnoses what is wrong with a training run: ``diagnose(read("run.jsonl")).verdicts``."""

from torchnan.training.diagnosis import (
    Column,
    Diagnosis,
    Digests,
    Forecast,
    Headroom,
    Question,
    Run,
    RunError,
    Suspect,
    Thresholds,
    Verdict,
    diagnose,
    of_columns,
    read,
)

__all__ = [
    "Column",
    "Diagnosis",
    "Digests",
    "Forecast",
    "Headroom",
    "Question",
    "Run",
    "RunError",
    "Suspect",
    "Thresholds",
    "Verdict",
    "diagnose",
    "of_columns",
    "read",
]
