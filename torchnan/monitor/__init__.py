"""Records one row of numbers per training step and diagnoses the run while it goes on."""

from torchnan.monitor.monitor import Monitor
from torchnan.monitor.row import Row

__all__ = ["Monitor", "Row"]
