"""The few places in PyTorch's Python where harm is done out of the dispatcher's sight. In place only while something
is watched."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchnan import _program
from torchnan._contain import contained
from torchnan._load import _C
from torchnan.step import shards

if TYPE_CHECKING:
    from torchnan._detect import detect

_lock = threading.Lock()
_installed = 0
_undo: list[Callable[[], None]] = []


def install() -> None:
    """Puts the hooks in place with the first of several scopes, which this thread has entered."""
    global _installed
    with _lock:
        _installed += 1
        if _installed > 1:
            return
        with contained("letting higher-order operators pass"):
            _let_higher_order_ops_pass()
        _put(torch.autograd, "_engine_run_backward", _judging_roots)
        _put(torch.autograd.Function, "apply", _noting_the_node)
        for method in ("tolist", "numpy"):
            _put(torch.Tensor, method, _judging_reads)
        for method in ("numpy", "__dlpack__"):
            _put(torch.Tensor, method, _noting_export)
        for method in ("data_ptr", "untyped_storage"):
            _put(torch.Tensor, method, _doubting)
        _put(torch._C, "_increment_version", _doubting_all)
        _undo.append(register_optimizer_step_pre_hook(_before_step).remove)
        _undo.append(register_optimizer_step_post_hook(_after_step).remove)


def uninstall() -> None:
    """Takes them away with the last."""
    global _installed
    with _lock:
        _installed -= 1
        if _installed > 0:
            return
        while _undo:
            with contained("taking a hook away"):
                _undo.pop()()


def _put(holder: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """One that does not fit is done without."""
    with contained(f"the hook on {name}"):
        _undo.append(replace(holder, name, wrap))


def replace(holder: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Puts a wrapper in the place of ``holder.name``; the function that is returned takes it away.

    Others may do the same, and take theirs away in any order. Where theirs is on top it stays there, and ours below,
    until they have put ours back: then the next wrapper replaces it.
    """
    own = name in vars(holder)
    original = vars(holder)[name] if own else getattr(holder, name)
    while (below := _left_below(original)) is not None:
        original, own = below
    wrapper = wrap(original)
    setattr(holder, name, wrapper)

    def undo() -> None:
        if vars(holder).get(name) is not wrapper:
            wrapper._torchnan_left = (wrapper, original, own)
        elif own:
            setattr(holder, name, original)
        else:
            delattr(holder, name)

    return undo


def _left_below(wrapper: Any) -> tuple[Any, bool] | None:
    """What it wraps, and whether its holder had that itself, if it is ours and was to be taken away."""
    mark = getattr(wrapper, "_torchnan_left", None)
    return mark[1:] if mark is not None and mark[0] is wrapper else None  # functools.wraps() hands marks on


# -- backward


def _judging_roots(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_backward)
    def wrapper(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        _C.judge_roots(outputs, gradients)
        return run_backward(outputs, gradients, *args, **kwargs)

    return wrapper


def _noting_the_node(apply: Any) -> Any:
    """What runs inside a Function makes no node; if it has only views in it, no operation tells where it was called."""

    @functools.wraps(apply.__func__)
    def wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        _C.note_call_site()
        return apply.__func__(cls, *args, **kwargs)

    return classmethod(wrapper)


# -- values read by the program; item() is an operation, these are not


def _judging_reads(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _C.anything_nonfinite() and isinstance(self, torch.Tensor):
            _C.judge("read", [self], lambda _: "")
        return method(self, *args, **kwargs)

    return wrapper


# -- memory that others may write from here on: what is known of it ends


def _noting_export(method: Callable[..., Any]) -> Callable[..., Any]:
    """The other side keeps the memory for as long as it likes."""

    @functools.wraps(method)
    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _C.note_exported(self)
        return method(self, *args, **kwargs)

    return wrapper


def _doubting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Whoever takes the address of memory writes there at once, if at all."""

    @functools.wraps(method)
    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _C.doubt(self)
        return method(self, *args, **kwargs)

    return wrapper


def _doubting_all(increment_version: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph tells that it has written into its inputs."""

    @functools.wraps(increment_version)
    def wrapper(tensors: Any) -> None:
        if isinstance(tensors, Iterable) and not isinstance(tensors, torch.Tensor):
            tensors = tuple(tensors)
            for tensor in tensors:
                _C.doubt(tensor)
        increment_version(tensors)

    return wrapper


# -- optimizers


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return None
    with contained("judging gradients"):
        if _uses_gradients_as_they_are(optimizer):
            judge_gradients(optimizer)
            return _with_judging_closure(optimizer, args, kwargs)
    return None


def _uses_gradients_as_they_are(optimizer: Optimizer) -> bool:
    """Others may clean or refuse them first; then only what they write is judged."""
    owner = next(base for base in type(optimizer).__mro__ if "step" in vars(base))
    return owner.__module__.startswith("torch.optim.") and not optimizer._optimizer_step_pre_hooks


def _with_judging_closure(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """step(closure): the gradients to judge are those that the closure leaves."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None

    @functools.wraps(closure)
    def judging(*inner: Any, **options: Any) -> Any:
        loss = closure(*inner, **options)
        with contained("judging gradients"):
            judge_gradients(optimizer)
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": judging}
    return (args[0], judging, *args[2:]), kwargs


def judge_gradients(optimizer: Optimizer) -> None:
    if not _C.anything_nonfinite() or _scaler_skips(optimizer):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    gradients = [shards.local(p.grad) for p in parameters]
    _C.judge("gradient", gradients, lambda i: _program.name(parameters[i]))


def _scaler_skips(optimizer: Optimizer) -> bool:
    """A fused optimizer is told by the scaler, on the device, that this step does not count."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found != 0)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    watch = _C.current_watch()
    if watch is None:
        return
    with contained("judging the state of an optimizer"):
        if _C.anything_nonfinite():
            _judge_state(optimizer)
    watch.count_step()


def _judge_state(optimizer: Optimizer) -> None:
    """Optimizers from elsewhere keep other things there than a dict for each parameter."""
    states = [state for state in optimizer.state.values() if isinstance(state, dict)]
    tensors = [(key, value) for state in states for key, value in state.items() if isinstance(value, torch.Tensor)]
    _C.judge("optimizer_state", [value for _, value in tensors], lambda i: str(tensors[i][0]))


# -- higher-order operators know their dispatch keys one by one, and refuse those they do not know


def _let_higher_order_ops_pass() -> None:
    key = torch._C._parse_dispatch_key(_C.interceptor_key_name())
    assert key is not None  # the core has registered on it
    defaults = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if key not in defaults:
        defaults.append(key)
    for op in torch._ops._higher_order_ops.values():
        op.fallthrough(key)  # type: ignore[no-untyped-call]


# -- threads: the dispatch key belongs to one

_undo_threads: Callable[[], None] | None = None


@contextlib.contextmanager
def watching_new_threads(scope: detect) -> Iterator[None]:
    """Every thread that Python starts inside takes part in this detection."""
    undo = replace(threading.Thread, "_bootstrap_inner", _watched_by(scope))
    try:
        yield
    finally:
        undo()


def watch_new_threads(scope: detect | None) -> None:
    """Every thread that Python starts from now on takes part in this detection; ``None`` ends that."""
    global _undo_threads
    if _undo_threads is not None:
        _undo_threads()
    _undo_threads = None
    if scope is not None:
        _undo_threads = replace(threading.Thread, "_bootstrap_inner", _watched_by(scope))


def _watched_by(scope: detect) -> Callable[[Any], Any]:
    watch = scope._watch

    def watched(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        @functools.wraps(run)
        def wrapper(self: threading.Thread) -> None:
            with contained("taking a thread in"):
                _C.enter_watch(watch)
            try:
                run(self)
            finally:
                _C.leave_watch(watch)

        return wrapper

    return watched
