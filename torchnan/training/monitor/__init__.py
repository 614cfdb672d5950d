"""Records one row of numbers per training step and diagnoses the run while it goes on."""

from torchnan.training.monitor.monitor import Monitor
from torchnan.training.monitor.row import Row

__all__ = ["Monitor", "Row"]
