"""Runs a bad step once more in float32, to distinguish overflow of a narrower dtype from a structural fault."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from torchnan.detection import shards, signal_handlers
from torchnan.detection.apart import step_apart
from torchnan.detection.session import detect, entered_with_new_threads
from torchnan.distributed.agreement import Agreement
from torchnan.training.guard.step.forward_backward import ForwardBackward, StepRun

NARROW = (torch.float16, torch.bfloat16)


def is_finite_in_float32(rerun: Callable[[], StepRun], forward_backward: ForwardBackward, agreement: Agreement) -> bool:
    """Returns whether the step is finite in float32. Collective. Restores weights and buffers, and drops gradients.

    Args:
        rerun: restores the step's inputs and runs forward and backward, without an update.
        forward_backward: runs and checks the step.
        agreement: agreement with the other ranks.

    Raises:
        RuntimeError: the step cannot be run in float32 on this or another rank, with the reason.
    """
    reason, run = _unsupported_reason(forward_backward.model), None
    if agreement.all_reduce_max(int(bool(reason))) > 0:
        raise RuntimeError(reason or "another rank cannot")
    try:
        with _float32_weights(forward_backward), torch.compiler.set_stance("force_eager"):
            run = step_apart(lambda: _run_in_float32(rerun))
    except Exception as error:  # noqa: BLE001 - the other ranks must learn of it before it is raised
        signal_handlers.let_through(error)
        reason = f"{type(error).__name__}: {error}"
    if agreement.all_reduce_max(int(run is None)) > 0 or run is None:
        raise RuntimeError(reason or "another rank failed")
    return forward_backward.agree(run)[0] is None


def _run_in_float32(rerun: Callable[[], StepRun]) -> StepRun:
    quiet = detect(action="log")  # shadows the user's session, and reports nothing
    with entered_with_new_threads(quiet), _Float32Mode():  # type: ignore[no-untyped-call]
        return rerun()


class _Float32Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces 16-bit dtypes with float32, whether autocast or user code asks for them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func._schema.is_mutable:
            args = [self._to_float32(argument) for argument in args]
        return func(*args, **{name: self._to_float32(value) for name, value in (kwargs or {}).items()})

    def _to_float32(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float32 if value in NARROW else value
        if isinstance(value, torch.Tensor) and value.dtype in NARROW:
            return value.to(torch.float32)
        return [self._to_float32(item) for item in value] if isinstance(value, list) else value


@contextlib.contextmanager
def _float32_weights(forward_backward: ForwardBackward) -> Iterator[None]:
    """Gives 16-bit parameters and buffers float32 data temporarily, keeping the tensor objects."""
    tensors = [
        t for t in (*forward_backward.model.parameters(), *forward_backward.model.buffers()) if t.dtype in NARROW
    ]
    original = [(tensor, tensor.data) for tensor in tensors]
    torch.clear_autocast_cache()
    try:
        for tensor, data in original:
            tensor.grad = None
            tensor.data = data.to(torch.float32)
        yield
    finally:
        forward_backward.optimizer.zero_grad(set_to_none=True)
        for tensor, data in original:
            tensor.grad = None
            tensor.data = data
        torch.clear_autocast_cache()


def _unsupported_reason(model: torch.nn.Module) -> str:
    """Returns why a model cannot be run in another dtype, or "" if it can."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapper: Any = getattr(fsdp, "FullyShardedDataParallel", ())
    if any(map(shards.is_sharded, model.parameters())) or any(isinstance(m, wrapper) for m in model.modules()):
        return "its weights are sharded, and keep buffers of their dtype between steps"
    if isinstance(model, DistributedDataParallel) and any(p.dtype in NARROW for p in model.parameters()):
        return "the buckets of its gradients have the dtype of its weights"
    return ""
