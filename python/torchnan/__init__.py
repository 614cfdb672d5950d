"""torchnan names the operation that made a NaN or an Inf: forward, backward and in the optimizer."""

from torchnan._load import _C as _C  # isort: skip - first: says why if the core cannot be loaded
from typing import TYPE_CHECKING, Any

from torchnan import _environment, _errors, _program
from torchnan._bounds import Bound, register_bound
from torchnan._detect import detect, set_detect
from torchnan._errors import NonFiniteError, NonFiniteWarning
from torchnan._finding import Finding
from torchnan._guard import guard
from torchnan._headroom import Headroom as Headroom

if TYPE_CHECKING:
    from torchnan._nan_detector import NaNDetector
    from torchnan._nan_detector import NaNState as NaNState
    from torchnan._step_guard import StepGuard
    from torchnan.capture import load_capture
    from torchnan.monitor import Monitor

_C.plug_in(_program, _errors)

__all__ = [
    "Bound",
    "Finding",
    "Monitor",
    "NaNDetector",
    "NonFiniteError",
    "NonFiniteWarning",
    "StepGuard",
    "detect",
    "guard",
    "load_capture",
    "register_bound",
    "set_detect",
]

# What stands around a training step is loaded when it is first asked for: detection alone costs nothing of it.
_LATER = {
    "Monitor": "torchnan.monitor",
    "NaNDetector": "torchnan._nan_detector",
    "NaNState": "torchnan._nan_detector",
    "StepGuard": "torchnan._step_guard",
    "load_capture": "torchnan.capture",
}
_PACKAGES = ("capture", "diagnosis", "findings", "monitor", "recovery")


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"torchnan.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'torchnan' has no attribute '{name}'")
    return getattr(importlib.import_module(_LATER[name]), name)


if _environment.is_pending:
    _environment.switch_on()
