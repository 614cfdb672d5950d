"""Diagnoses what is wrong with a training run: ``diagnose(read("run.jsonl")).verdicts``."""

try:
    import numpy as _numpy  # noqa: F401
    import scipy as _scipy  # noqa: F401
except ImportError as error:
    raise ImportError(f"torchnan.diagnosis needs {error.name}: pip install torchnan[diagnose]") from None

from torchnan.training.diagnosis.decision_tree import diagnose
from torchnan.training.diagnosis.readers import RunError, read
from torchnan.training.diagnosis.run import Column, Digests, Headroom, Run, of_columns
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Diagnosis, Forecast, Question, Suspect, Verdict

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
