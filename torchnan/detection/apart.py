"""Runs functions on a thread of the program, apart from what the program has set there."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from torchnan._load import _C

T = TypeVar("T")


def step_apart(run: Callable[[], T]) -> T:
    """Runs functions of the program once more, on this thread, so that the program does not notice.

    They compute in the program's autocast, grad and inference mode, and on its default device. Its other modes, its
    saved-tensor hooks, sessions and profilers are left out, and so are warnings. Random numbers come from copies of
    PyTorch's generators; ``torch.manual_seed()``, ``torch.set_rng_state()`` and the like set these copies. Python's and
    NumPy's generators, and whatever else the functions change, belong to the process.
    """
    modes, is_caching = _C.thread_modes(), torch.is_autocast_cache_enabled()
    function_modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    devices = [mode.device for mode in function_modes if isinstance(mode, DeviceContext)]

    def body() -> T:
        with contextlib.ExitStack() as stack:
            for device in devices:
                stack.enter_context(DeviceContext(device))
            stack.enter_context(in_modes(modes, cache_enabled=is_caching))
            # The threads of autograd draw from the program's generators. inference_mode() resets this.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(without_warnings())
            stack.enter_context(_generators_by_thread())
            return run()

    return contextvars.copy_context().run(_C.run_apart, body, True)


@contextlib.contextmanager
def in_modes(modes: Any, *, cache_enabled: bool) -> Iterator[None]:
    """Enters the modes of a thread.

    Args:
        modes: what ``_C.thread_modes()`` has returned there.
        cache_enabled: whether autocast keeps the weights that it has converted.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(modes.inference))
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        for device, dtype in modes.autocast:
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=cache_enabled))
        yield


class _OnThreadApart(type):
    """The class of a filter of warnings that applies while its thread runs something apart."""

    def __subclasscheck__(cls, category: type) -> bool:
        return _C.is_apart()


class _OfReplay(Warning, metaclass=_OnThreadApart):
    pass


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Drops the warnings of what runs apart: the program has seen its own. Those of other threads are shown."""
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # catch_warnings() of another thread replaces it
    of_replay = ("ignore", None, _OfReplay, None, 0)
    filters.insert(0, of_replay)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a function of the program has reset them
            filters.remove(of_replay)


class _ByThread(torch.Generator):
    """Stands for a generator of the program, wherever one is expected. Its methods act on the generator from which the
    calling thread draws in its place."""

    def __new__(cls, original: torch.Generator) -> _ByThread:
        made = super().__new__(cls)
        _C.stand_for(made, original)
        return made

    def __init__(self, original: torch.Generator) -> None:
        self._original = original


def _acting_by_thread(name: str) -> Callable[..., Any]:
    def act(self: _ByThread, *args: Any) -> Any:
        return getattr(_C.private_generator(self._original), name)(*args)

    return act


for _name in vars(torch.Generator):
    if not _name.startswith("_") and callable(getattr(torch.Generator, _name)):
        setattr(_ByThread, _name, _acting_by_thread(_name))

_lock = threading.Lock()
_users = 0  # guarded by the lock
_replaced: list[tuple[ModuleType, str, Any, Any]] = []  # module, attribute, value before and now; guarded by the lock


@contextlib.contextmanager
def _generators_by_thread() -> Iterator[None]:
    """Lets PyTorch's functions for random states, which use generators by these names, act on those of the thread."""
    global _users
    with _lock:
        if _users == 0:
            _replace_generators()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            while _users == 0 and _replaced:
                module, name, before, now = _replaced.pop()
                if getattr(module, name) is now:  # else a device has been initialized meanwhile
                    setattr(module, name, before)


def _replace_generators() -> None:
    places = [(torch, "default_generator"), (torch.random, "default_generator")]
    device = torch.accelerator.current_accelerator()
    if device is not None:
        places.append((torch.get_device_module(device), "default_generators"))
    for module, name in places:
        before = getattr(module, name, None)
        if isinstance(before, torch.Generator):
            now: Any = _ByThread(before)
        elif before:
            now = tuple(map(_ByThread, before))
        else:
            continue
        setattr(module, name, now)
        _replaced.append((module, name, before, now))
