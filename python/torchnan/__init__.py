"""torchnan names the operation that made a NaN or an Inf: forward, backward and in the optimizer."""

from torchnan._load import _C as _C  # isort: skip - first: says why if the core cannot be loaded
from torchnan import _environment, _errors, _program
from torchnan._bounds import Bound, register_bound
from torchnan._detect import detect, set_detect
from torchnan._errors import NonFiniteError, NonFiniteWarning
from torchnan._finding import Finding
from torchnan._guard import guard
from torchnan._nan_detector import NaNDetector, NaNState
from torchnan._step_guard import StepGuard
from torchnan.capture import load_capture

_C.plug_in(_program, _errors)

__all__ = [
    "Bound",
    "Finding",
    "NaNDetector",
    "NaNState",
    "NonFiniteError",
    "NonFiniteWarning",
    "StepGuard",
    "detect",
    "guard",
    "load_capture",
    "register_bound",
    "set_detect",
]

if _environment.is_pending:
    _environment.switch_on()
