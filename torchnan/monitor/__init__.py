"""One row per training step: what a run looks like, written down, judged while it goes on."""

from torchnan.monitor.monitor import Monitor
from torchnan.monitor.row import Row

__all__ = ["Monitor", "Row"]
