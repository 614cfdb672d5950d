"""Runs, read from what programs have left: ``read("run.jsonl")``."""

from torchnan.diagnosis.reading.errors import RunError
from torchnan.diagnosis.reading.source import read

__all__ = ["RunError", "read"]
