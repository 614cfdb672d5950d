"""Diagnoses what is wrong with a training run: ``diagnose(read("run.jsonl")).verdicts``."""

from torchnan.training.diagnosis import *  # noqa: F403
from torchnan.training.diagnosis import __all__ as __all__
