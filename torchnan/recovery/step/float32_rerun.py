"""A bad step once more, in float32: is it the range of a narrower dtype, or the program?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from torchnan.detection import shards
from torchnan.detection.session import detect, entered_with_new_threads
from torchnan.distributed.agreement import Agreement
from torchnan.recovery.step.forward_backward import ForwardBackward, StepRun

NARROW = (torch.float16, torch.bfloat16)


def in_float32(again: Callable[[], StepRun], forward_backward: ForwardBackward, agreement: Agreement) -> bool:
    """Whether the step is finite then. All ranks ask together. Weights, buffers and gradients are as before.

    Args:
        again: puts back what the step started from, and runs it: forward and backward, no update.
        forward_backward: knows the model, and what a bad step is.
        agreement: with the other ranks.

    Raises:
        RuntimeError: it cannot be run so, here or on another rank; says why.
    """
    reason, run = _obstacle(forward_backward.model), None
    if agreement.all_reduce_max(int(bool(reason))) > 0:
        raise RuntimeError(reason or "another rank cannot")
    try:
        with _wide_weights(forward_backward), torch.compiler.set_stance("force_eager"), _watched_quietly(), _Wide():  # type: ignore[no-untyped-call]
            run = again()
    except Exception as error:  # noqa: BLE001 - the other ranks are to hear of it before it is told
        reason = f"{type(error).__name__}: {error}"
    if agreement.all_reduce_max(int(run is None)) > 0 or run is None:
        raise RuntimeError(reason or "another rank failed")
    return forward_backward.agree(run)[0] is None


class _Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """No operation makes a tensor of 16 bits, whether autocast asks for it or the program."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func._schema.is_mutable:
            args = [self._widened(argument) for argument in args]
        return func(*args, **{name: self._widened(value) for name, value in (kwargs or {}).items()})

    def _widened(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float32 if value in NARROW else value
        if isinstance(value, torch.Tensor) and value.dtype in NARROW:
            return value.to(torch.float32)
        return [self._widened(item) for item in value] if isinstance(value, list) else value


@contextlib.contextmanager
def _wide_weights(forward_backward: ForwardBackward) -> Iterator[None]:
    """The parameters and buffers are the same objects, with other data for a while."""
    tensors = [
        t for t in (*forward_backward.model.parameters(), *forward_backward.model.buffers()) if t.dtype in NARROW
    ]
    kept = [(tensor, tensor.data) for tensor in tensors]
    torch.clear_autocast_cache()
    try:
        for tensor, data in kept:
            tensor.grad = None
            tensor.data = data.to(torch.float32)
        yield
    finally:
        forward_backward.optimizer.zero_grad(set_to_none=True)
        for tensor, data in kept:
            tensor.grad = None
            tensor.data = data
        torch.clear_autocast_cache()


@contextlib.contextmanager
def _watched_quietly() -> Iterator[None]:
    """What a detection of the program's would make of it is not told."""
    watch = detect(action="log")
    with entered_with_new_threads(watch):
        yield


def _obstacle(model: torch.nn.Module) -> str:
    """Why a model cannot be run in another dtype; "" if it can."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapper: Any = getattr(fsdp, "FullyShardedDataParallel", ())
    if any(map(shards.is_sharded, model.parameters())) or any(isinstance(m, wrapper) for m in model.modules()):
        return "its weights are sharded, and keep buffers of their dtype between steps"
    if isinstance(model, DistributedDataParallel) and any(p.dtype in NARROW for p in model.parameters()):
        return "the buckets of its gradients have the dtype of its weights"
    return ""
