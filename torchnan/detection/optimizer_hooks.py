"""Checks before and after each step of an optimizer while a session is open."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer

from torchnan._load import _C
from torchnan.detection import initial_weights, introspection, proved_step, shards
from torchnan.detection.containment import contained


class _Parameter(NamedTuple):
    """A parameter of an optimizer, and its place there."""

    tensor: torch.Tensor
    group: int
    place: int

    @property
    def name(self) -> str:
        described = f"parameter {self.place} of group {self.group}, shape {list(self.tensor.shape)}"
        return introspection.name_of_parameter(self.tensor) or described


_scaling = threading.local()  # ended: the optimizers whose steps ended inside GradScaler.step()
_counted_pass = -1  # the last backward pass whose steps were counted
_STEP = Optimizer.profile_hook_step(lambda: None).__code__  # of the function in which PyTorch runs every step


def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Checks the gradients that a step is about to use, or proves its results."""
    if torch.compiler.is_compiling():
        return None
    is_first = not initial_weights.are_noted(optimizer)
    has_closure = len(args) > 1 or kwargs  # which may compute the gradients to check
    replaced = None
    if is_first or has_closure or _may_hold_nonfinite():
        with contained("checking gradients"):
            if is_first:
                initial_weights.note(optimizer)
            if _uses_gradients_as_they_are(optimizer):
                replaced = _with_checking_closure(optimizer, args, kwargs)
                if replaced is None:
                    check_gradients(optimizer)
    if not has_closure:
        with contained("proving a step"):
            proved_step.try_start(optimizer)
    return replaced


def _may_hold_nonfinite() -> bool:
    """Skips the checks: most steps need none."""
    return _C.has_nonfinite() or _C.uses_devices() or _C.has_received()


def _uses_gradients_as_they_are(optimizer: Optimizer) -> bool:
    """Whether other hooks may clean or refuse gradients first; then only the results of the step are checked."""
    # PyTorch wraps step() of the first class that is used. The wrapper knows its class; the attribute may be inherited.
    module = str(type(optimizer).step.__module__)
    return module.startswith("torch.optim.") and not optimizer._optimizer_step_pre_hooks


def _with_checking_closure(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Returns the arguments of ``step(closure)`` with a closure that checks the gradients it leaves; the step does not
    use earlier ones. Returns ``None`` if there is no closure."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None

    @functools.wraps(closure)
    def checking(*inner: Any, **options: Any) -> Any:
        loss = closure(*inner, **options)
        with contained("checking gradients"):
            check_gradients(optimizer)
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": checking}
    return (args[0], checking, *args[2:]), kwargs


def check_gradients(optimizer: Optimizer) -> None:
    """Reports non-finite gradients that an optimizer is about to use, unless the loss scaler lets it skip the step."""
    if not _may_hold_nonfinite() or _scaler_skips(optimizer):
        return
    with torch._C.DisableTorchFunction():  # inspecting a tensor is not a call by user code
        updated = [(one, gradient) for one in _places(optimizer) if (gradient := one[0].grad) is not None]
        gradients = [shards.local(gradient) for _, gradient in updated]
    _C.report_tensors("gradient", gradients, lambda i: _Parameter(*updated[i][0]).name)


def _places(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Yields what a :class:`_Parameter` consists of: cheaper to make, and few of them are ever named."""
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            yield parameter, g, i


def _scaler_skips(optimizer: Optimizer) -> bool:
    """Returns whether the loss scaler has marked, on the device, that a fused optimizer skips the step."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(_C.scalar_value(found))


def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Checks the state that a step has left in its optimizer, and counts the step."""
    if torch.compiler.is_compiling():
        return
    proved_step.finish()
    _end_step(optimizer, is_counted=not _is_inside_other_step())


def before_compiled_step(optimizer: Optimizer) -> None:
    """Checks the gradients that a compiled step is about to use."""
    with contained("checking gradients"):
        if not initial_weights.are_noted(optimizer):
            initial_weights.note(optimizer)
        if _may_hold_nonfinite() and _uses_gradients_as_they_are(optimizer):
            check_gradients(optimizer)


def after_compiled_step(optimizer: Optimizer) -> None:
    """Checks the state that a compiled step has left, and counts the step."""
    _end_step(optimizer, is_counted=True)


def _is_inside_other_step() -> bool:
    """Returns whether the step that is ending was called by the step of another optimizer, as in
    ``ZeroRedundancyOptimizer``. Both are one training step."""
    frame, steps = sys._getframe(), 0
    while frame is not None and steps < 2:
        steps += frame.f_code is _STEP
        frame = frame.f_back  # type: ignore[assignment]
    return steps == 2


def _end_step(optimizer: Optimizer, is_counted: bool) -> None:
    if (ended := getattr(_scaling, "ended", None)) is not None:
        ended.append(optimizer)
    if _may_hold_nonfinite() and _C.current_session() is not None:
        with contained("checking the state of an optimizer"):
            if _C.has_nonfinite() or _C.is_alarmed():
                _check_state(optimizer)
            else:
                # for the results of the step, so that they are checked before a checkpoint saves them
                _C.launch_scans()
    if not is_counted:
        return
    if _may_hold_nonfinite() and _scaler_skips(optimizer):
        _C.count_skipped_step()
    else:
        _count_step()


def _count_step() -> None:
    """Counts a step. Steps inside a backward pass, such as one for each parameter, are one training step, which lasts
    until the pass ends."""
    global _counted_pass
    current_pass = torch._C._current_graph_task_id()
    if current_pass == -1:
        _C.count_step()
    elif current_pass != _counted_pass:
        _counted_pass = current_pass
        torch.autograd.Variable._execution_engine.queue_callback(_C.count_step)


def counting_skipped(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``GradScaler.step``: counts a step that the scaler skips, and records that its gradients are unused."""

    @functools.wraps(step)
    def wrapper(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(_scaling, "ended", None)
        ended: list[Optimizer] = []
        _scaling.ended = ended
        try:
            result = step(self, optimizer, *args, **kwargs)
        finally:
            _scaling.ended = outer
        if outer is None and not ended and isinstance(optimizer, Optimizer):
            _C.count_skipped_step()
        return result

    return wrapper


def _check_state(optimizer: Optimizer) -> None:
    """Checks the shards of parameters and the state. The core sees whole parameters while the step writes them.

    Optimizers of other packages may keep other things in their state than a dict for each parameter.
    """
    sharded = [_Parameter(*one) for one in _places(optimizer) if shards.is_sharded(one[0])]
    _C.report_tensors("parameter", [shards.local(one.tensor) for one in sharded], lambda i: sharded[i].name)
    states = optimizer.state.values() if isinstance(optimizer.state, Mapping) else ()
    values = [item for state in states if isinstance(state, Mapping) for item in state.items()]
    tensors = [(key, value) for key, value in values if isinstance(value, torch.Tensor)]
    _C.report_tensors("optimizer_state", [shards.local(value) for _, value in tensors], lambda i: str(tensors[i][0]))
