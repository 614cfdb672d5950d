"""Reads runs from logs, tables and event files: ``read("run.jsonl")``."""

from torchnan.training.diagnosis.readers.errors import RunError
from torchnan.training.diagnosis.readers.source import read

__all__ = ["RunError", "read"]
