"""Public names of the monitor: it records one row of numbers per training step."""

from torchnan.training.monitor import Monitor, Row

__all__ = ["Monitor", "Row"]
