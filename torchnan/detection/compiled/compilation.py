"""Computations of PyTorch while it traces and compiles belong to the compiler: the program has not run them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torchnan._load import _C

_CUDA_GRAPH = "CUDAGRAPH_RECORDING"  # names a trigger under which the program's own kernels run


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Detaches this thread from its sessions. Its dispatch keys stay as they are, because guards made inside hold
    them."""
    _C.suspend_thread()
    try:
        yield
    finally:
        _C.resume_thread()


def compiling(install_callbacks: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the context manager that is entered for each compilation, of a forward or a backward pass."""

    @functools.wraps(install_callbacks)
    @contextlib.contextmanager
    def install_unwatched(handler: Any, trigger: Any, *args: Any, **options: Any) -> Iterator[None]:
        if _C.is_replaying():  # the callbacks are those of the program
            yield
            return
        is_program = getattr(trigger, "name", "") == _CUDA_GRAPH
        watching = contextlib.nullcontext() if is_program else unwatched()
        with watching, install_callbacks(handler, trigger, *args, **options):
            yield

    return install_unwatched


def on_fake_tensors(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps operations on fake tensors: with constants they compute real values, with which tracing continues."""

    @functools.wraps(dispatch)
    def dispatch_unwatched(mode: Any, *args: Any, **options: Any) -> Any:
        with unwatched():
            return dispatch(mode, *args, **options)

    return dispatch_unwatched
