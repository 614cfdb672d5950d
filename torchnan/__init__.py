"""torchnan names the operation that made a NaN or an Inf: forward, backward and in the optimizer."""

from torchnan._load import _C as _C  # isort: skip - first: explains why the core cannot be loaded
from typing import TYPE_CHECKING, Any

from torchnan import _build, startup
from torchnan.detection import introspection
from torchnan.detection.bounds import Bound, register_bound
from torchnan.detection.errors import NonFiniteError, NonFiniteWarning
from torchnan.detection.finding import Finding
from torchnan.detection.guard import guard
from torchnan.detection.headroom import Headroom
from torchnan.detection.session import detect, set_detect
from torchnan.distributed import delivery

if TYPE_CHECKING:
    from torchnan import capture, diagnosis, findings, health, monitor, recovery
    from torchnan.detection.anomaly import detect_anomaly, set_detect_anomaly
    from torchnan.detection.origin import origin_of
    from torchnan.training.capture import load_capture
    from torchnan.training.guard.nan_detector import NaNDetector, NaNState
    from torchnan.training.guard.remedies import try_remedies
    from torchnan.training.guard.step_guard import StepGuard
    from torchnan.training.monitor import Monitor

__version__ = _build.version

_C.set_runtime(introspection, delivery)

__all__ = [
    "Bound",
    "Finding",
    "Headroom",
    "Monitor",
    "NaNDetector",
    "NaNState",
    "NonFiniteError",
    "NonFiniteWarning",
    "StepGuard",
    "capture",
    "detect",
    "detect_anomaly",
    "diagnosis",
    "findings",
    "guard",
    "health",
    "load_capture",
    "monitor",
    "origin_of",
    "recovery",
    "register_bound",
    "set_detect",
    "set_detect_anomaly",
    "try_remedies",
]

# Imported when first used: detection alone does not need them.
_LAZY = {
    "Monitor": "torchnan.monitor",
    "NaNDetector": "torchnan.training.guard.nan_detector",
    "NaNState": "torchnan.training.guard.nan_detector",
    "StepGuard": "torchnan.training.guard.step_guard",
    "detect_anomaly": "torchnan.detection.anomaly",
    "load_capture": "torchnan.capture",
    "origin_of": "torchnan.detection.origin",
    "set_detect_anomaly": "torchnan.detection.anomaly",
    "try_remedies": "torchnan.training.guard.remedies",
}
_PACKAGES = ("capture", "diagnosis", "findings", "health", "monitor", "recovery")


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"torchnan.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'torchnan' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Returns the public names, also those that were not used yet."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


if startup.is_pending:
    startup.switch_on()
