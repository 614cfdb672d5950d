"""Reads runs from logs, tables and event files: ``read("run.jsonl")``."""

from torchnan.training.diagnosis.readers.source import read
from torchnan.training.diagnosis.run import RunError

__all__ = ["RunError", "read"]
