"""One call with detection off and on: differences that a program could notice, and false reports."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchnan
from tests.support.call_observation import Call, Run, differences, is_finite

Observer = Callable[[list[Any]], contextlib.AbstractContextManager[Any]]


# -- observers of operations


class _Functions(TorchFunctionMode):
    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def modes(seen: list[Any]) -> Iterator[None]:
    """The calls that a program's own modes see: functions, and the operations below autograd."""
    with _Functions(seen), _Operations(seen):
        yield


@contextlib.contextmanager
def recorder(seen: list[Any]) -> Iterator[None]:
    """Every call that passes the dispatcher on this thread, also inside kernels and below the modes, and every node."""
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, False, False, False, False, _ExperimentalConfig()))
    try:
        yield
    finally:
        events = [event for of_thread in _disable_profiler_legacy() for event in of_thread]
        seen += [event.name() for event in events if event.kind() == "push"]


@contextlib.contextmanager
def nobody(seen: list[Any]) -> Iterator[None]:
    yield


# -- off and on


@contextlib.contextmanager
def quick_and_loud() -> Iterator[None]:
    """One thread; each warning is shown every time; no garbage collection during a run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_warn_always(False)
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _observed(scope: contextlib.AbstractContextManager[Any], observer: Observer, seen: list[Any]) -> Iterator[None]:
    with observer(seen), scope:
        yield


class Comparison:
    """A call with detection off, and again with it on. ``finite``: it ended with only finite values."""

    def __init__(
        self,
        call: Call,
        *,
        observer: Observer = nobody,
        twice: bool = True,
        printed: Callable[[], Any] = lambda: None,
        warned: str = "always",
    ) -> None:
        def run(scope: contextlib.AbstractContextManager[Any]) -> Run:
            seen: list[Any] = []
            run = Run(call, scope=_observed(scope, observer, seen), twice=twice, printed=printed, warned=warned)
            run.noticed["operations"] = seen
            return run

        self.watch = torchnan.detect(action="log")
        self.off, self.on = run(contextlib.nullcontext()), run(self.watch)
        self.finite = "error" not in self.on.noticed and all(map(is_finite, self.on.tensors))
        self._run_off = lambda: run(contextlib.nullcontext())

    def faults(self, varying: Callable[[str], bool] = lambda facet: False) -> list[str]:
        """The differences, one line each. ``varying`` names facets that differ between any two runs."""
        found = {name: what for name, what in differences(self.off, self.on).items() if not varying(name)}
        if found:  # is the cause detection, or the operator itself?
            again = differences(self.off, self._run_off())
            found = {
                name: what + (" (and between two runs without)" if name in again else "")
                for name, what in found.items()
            }
        faults = [f"{name}: {what}" for name, what in found.items()]
        if self.finite and self.watch.first is not None:
            faults.append(f"false alarm: {self.watch.first}")
        if self.watch.stats()["internal_errors"]:
            faults.append("internal error")
        return faults
