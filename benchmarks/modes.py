"""The modes that a step runs under: nothing, torchnan, its peers. Each is a context manager over a workload."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchnan
from benchmarks.workloads import Workload, compiled

Mode = Callable[[Workload], AbstractContextManager[None]]


@contextlib.contextmanager
def off(workload: Workload) -> Iterator[None]:
    """Loaded, but off."""
    yield


@contextlib.contextmanager
def intercept_only(workload: Workload) -> Iterator[None]:
    """Every operation passes the fallback; none is checked."""
    with torchnan.detect(skip_ops=("*",), stacks=False):
        yield


@contextlib.contextmanager
def detect(workload: Workload) -> Iterator[None]:
    """The product."""
    with torchnan.detect():
        yield


@contextlib.contextmanager
def headroom(workload: Workload) -> Iterator[None]:
    """The product, keeping the largest magnitude of every call site."""
    with torchnan.detect(headroom=True):
        yield


@contextlib.contextmanager
def anomaly_mode(workload: Workload) -> Iterator[None]:
    """torch.autograd.set_detect_anomaly(True)."""
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextlib.contextmanager
def forward_hooks(workload: Workload) -> Iterator[None]:
    """isfinite().all() in a hook on every module, like the tools built on hooks."""

    def check(module: torch.nn.Module, inputs: object, output: object) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise RuntimeError(f"not finite: output of {type(module).__name__}")

    handles = [module.register_forward_hook(check) for module in workload.model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_asserted: dict[str, Workload] = {}


@contextlib.contextmanager
def nan_asserts(workload: Workload) -> Iterator[None]:
    """Inductor's own assertions: the step of a model that was compiled with them."""
    if workload.name not in _asserted:
        assert workload.eager is not None
        _asserted[workload.name] = compiled(workload.eager, nan_asserts=True)()
    plain, workload.step = workload.step, _asserted[workload.name].step
    try:
        yield
    finally:
        workload.step = plain


class _CheckEverything(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
                torch.isfinite(tensor).all().item()
        return out


@contextlib.contextmanager
def dispatch_mode(workload: Workload) -> Iterator[None]:
    """isfinite().all() of every output in a Python dispatch mode."""
    with _CheckEverything():
        yield


def guard_of(workload: Workload, **options: Any) -> torchnan.StepGuard:
    """A StepGuard of its steps."""
    return torchnan.StepGuard(workload.model, workload.optimizer, lambda model, batch: workload.loss_of(), **options)


def monitor() -> torchnan.Monitor:
    """With its defaults, and a log."""
    return torchnan.Monitor(log=Path(tempfile.mkdtemp()) / "run.jsonl")


def _guarded(title: str, options: Callable[[], dict[str, Any]] = dict) -> Mode:
    """The step run by a StepGuard, which is made once for a workload: no step is bad."""

    @contextlib.contextmanager
    def guarded(workload: Workload) -> Iterator[None]:
        if title not in workload.guards:
            workload.guards[title] = guard_of(workload, **options())
        plain, workload.step = workload.step, lambda: _step(workload.guards[title], workload)
        try:
            yield
        finally:
            workload.step = plain

    return guarded


def _step(guard: torchnan.StepGuard, workload: Workload) -> None:
    if not guard.step(workload.batch).applied:
        raise RuntimeError(f"a step of {workload.name} was not applied:\n{guard.events[-1]}")


ALL: dict[str, Mode] = {
    "off": off,
    "StepGuard": _guarded("StepGuard"),
    "StepGuard + captures": _guarded("StepGuard + captures", lambda: {"captures": tempfile.mkdtemp(), "keep": "copy"}),
    "StepGuard + Monitor": _guarded("StepGuard + Monitor", lambda: {"monitor": monitor()}),
    "intercept only": intercept_only,
    "detect()": detect,
    "detect(headroom=True)": headroom,
    "set_detect_anomaly": anomaly_mode,
    "forward hooks": forward_hooks,
    "Python dispatch mode": dispatch_mode,
}
COMPILED: dict[str, Mode] = {
    "detect()": detect,
    "set_detect_anomaly": anomaly_mode,
    "Inductor's nan_asserts": nan_asserts,
}
