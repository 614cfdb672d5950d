"""Hooks on functions of PyTorch that do harm without a dispatched operation, installed while a session is open."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchnan._load import _C
from torchnan.detection import handover, initial_weights, introspection, proved_step, shards
from torchnan.detection.compiled import ahead_of_time, package, torch_internals
from torchnan.detection.compiled import backend as compiled_backend
from torchnan.detection.containment import contained

lock = threading.Lock()  # of what threads share here and in detect; quiet when the process forks
_installed = 0
_undo: list[Callable[[], None]] = []
_follows_ahead_of_time = False


def install() -> None:
    """Installs the hooks with the first of several sessions, which this thread has entered."""
    global _installed
    with lock:
        _installed += 1
        if _installed > 1:
            return
        with contained("registering higher-order operators"):
            _let_higher_order_ops_pass()
        for method, look, first, count in _callbacks():
            with contained(f"the hook on {getattr(method, '__name__', method)}"):  # one that does not fit is left out
                _undo.append(_C.hook_method(method, look, first, count))
        with contained("following compiled regions"):
            _undo.append(replace(torch_internals.inductor(), "__call__", compiled_backend.recording))
        with contained("following AOTInductor packages"):
            loader = torch_internals.package_loader_class()
            _undo.append(replace(loader, "__init__", package.naming))
            _undo.append(replace(loader, "boxed_run", package.checking))
        with contained("following functions that are compiled ahead of time"):
            if torch_internals.dynamo_is_loaded():
                _follow_ahead_of_time(torch_internals.guards_ahead_of_time())
            else:
                for holder, name in torch_internals.first_uses_of_dynamo():
                    _undo.append(replace(holder, name, _loading_dynamo))
        with contained("following tensors to other processes"):
            _undo.append(handover.install())
        with contained("following optimizer steps that raise"):
            _undo.append(replace(torch.autograd.profiler.record_function, "__exit__", proved_step.ending))
        _undo.append(register_optimizer_step_pre_hook(_before_step).remove)
        _undo.append(register_optimizer_step_post_hook(_after_step).remove)


def uninstall() -> None:
    """Removes the hooks with the last session."""
    global _installed, _follows_ahead_of_time
    with lock:
        _installed -= 1
        if _installed > 0:
            return
        _follows_ahead_of_time = False
        while _undo:
            with contained("removing a hook"):
                _undo.pop()()


def _follow_ahead_of_time(guards: list[tuple[Any, str]]) -> None:
    global _follows_ahead_of_time
    _follows_ahead_of_time = True
    for holder, name in guards:
        _undo.append(replace(holder, name, ahead_of_time.unwatched))
    _undo.append(replace(torch_internals.ahead_of_time_class(), "__call__", ahead_of_time.checking))


def _loading_dynamo(use: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that loads Dynamo in any case."""

    @functools.wraps(use)
    def load_and_use(*args: Any, **options: Any) -> Any:
        with contained("following functions that are compiled ahead of time"):
            guards = torch_internals.guards_ahead_of_time()  # imports Dynamo outside of the lock
            with lock:
                if _installed and not _follows_ahead_of_time:
                    _follow_ahead_of_time(guards)
        return use(*args, **options)

    return load_and_use


def _callbacks() -> list[tuple[Any, Callable[..., None], int, int]]:
    """Methods that are written in C, what looks first, and at which arguments: from the first on, how many."""
    tensor, engine = torch._C.TensorBase, type(torch.autograd.Variable._execution_engine)
    return [
        (engine.run_backward, _C.report_backward_roots, 1, 2),
        # What runs inside a Function makes no node; where it has only views, no operation records its call site.
        (vars(torch._C._FunctionBase)["apply"], _C.record_call_site, 0, 0),
        # Values read by the program; item() is an operation, these are not.
        (tensor.tolist, _C.report_read, 0, 1),
        (tensor.numpy, _C.report_read, 0, 1),
        # Memory that others may write from here on: what is known of it ends. These keep it for as long as they like.
        (tensor.numpy, _C.record_exported, 0, 1),
        (torch._C._to_dlpack, _C.record_exported, 0, 1),
        (torch._C._to_dlpack_versioned, _C.record_exported, 0, 1),
        # Whoever takes the address writes there at once, if at all.
        (tensor.data_ptr, _C.mark_stale, 0, 1),
        (tensor.untyped_storage, _C.mark_stale, 0, 1),
        # A compiled graph reports that it has written into its inputs.
        (torch._C._increment_version, _C.mark_all_stale, 0, 1),
    ]


# -- optimizers


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return None
    is_first = not initial_weights.are_noted(optimizer)
    has_closure = len(args) > 1 or kwargs  # which may make what is to be checked
    replaced = None
    if is_first or has_closure or _may_hold_nonfinite():
        with contained("checking gradients"):
            if _uses_gradients_as_they_are(optimizer):
                check_gradients(optimizer)
                replaced = _with_checking_closure(optimizer, args, kwargs)
            if is_first:
                initial_weights.note(optimizer)
    if not (is_first or has_closure):
        with contained("proving a step"):
            proved_step.try_start(optimizer)
    return replaced


def _may_hold_nonfinite() -> bool:
    """In most steps there is nothing to check."""
    return _C.has_nonfinite() or _C.uses_devices()


def _uses_gradients_as_they_are(optimizer: Optimizer) -> bool:
    """Others may clean or refuse them first; then only what they write is checked."""
    # PyTorch wraps step() of the first class that is used: the wrapper knows its class, the attribute may be inherited.
    module = str(type(optimizer).step.__module__)
    return module.startswith("torch.optim.") and not optimizer._optimizer_step_pre_hooks


def _with_checking_closure(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """step(closure): the gradients to check are those that the closure leaves."""
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
    with torch._C.DisableTorchFunction():  # a look at a tensor is no call that the program has made
        groups = [group["params"] for group in optimizer.param_groups]
        places = [(g, i) for g, group in enumerate(groups) for i, p in enumerate(group) if p.grad is not None]
        gradients = [shards.local(groups[g][i].grad) for g, i in places]

    def name(position: int) -> str:
        group, i = places[position]
        parameter = groups[group][i]
        place = f"parameter {i} of group {group}, shape {list(parameter.shape)}"
        return introspection.name_of_parameter(parameter) or place

    _C.report_tensors("gradient", gradients, name)


def _scaler_skips(optimizer: Optimizer) -> bool:
    """Returns whether the loss scaler has marked, on the device, that a fused optimizer skips the step."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(_C.scalar_value(found))


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    proved_step.finish()
    if _may_hold_nonfinite() and _C.current_session() is not None:
        with contained("checking the state of an optimizer"):
            if _C.has_nonfinite() or _C.is_alarmed():
                _check_state(optimizer)
            else:
                _C.launch_scans()  # of what the step has written, so that it is known before a checkpoint keeps it
    _C.count_step()


def _check_state(optimizer: Optimizer) -> None:
    """Optimizers from elsewhere keep other things there than a dict for each parameter."""
    states = optimizer.state.values() if isinstance(optimizer.state, Mapping) else ()
    values = [item for state in states if isinstance(state, Mapping) for item in state.items()]
    tensors = [(key, value) for key, value in values if isinstance(value, torch.Tensor)]
    _C.report_tensors("optimizer_state", [value for _, value in tensors], lambda i: str(tensors[i][0]))


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


def replace(holder: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Puts a wrapper in the place of ``holder.name``; the function that is returned takes it away.

    Others may do the same, and take theirs away in any order. Where theirs is on top it stays there, and ours below,
    until they have put ours back: then the next wrapper replaces it.
    """
    own = name in vars(holder)
    original = vars(holder)[name] if own else getattr(holder, name)
    while (below := _wrapped_original(original)) is not None:
        original, own = below
    wrapper = wrap(original)
    setattr(holder, name, wrapper)

    def undo() -> None:
        if vars(holder).get(name) is not wrapper:
            wrapper._torchnan_removed = (wrapper, original, own)
        elif own:
            setattr(holder, name, original)
        else:
            delattr(holder, name)

    return undo


def _wrapped_original(wrapper: Any) -> tuple[Any, bool] | None:
    """Returns what a wrapper of ours that should have been removed wraps, and whether its holder had that itself."""
    mark = getattr(wrapper, "_torchnan_removed", None)
    return mark[1:] if mark is not None and mark[0] is wrapper else None  # functools.wraps() hands marks on


@contextlib.contextmanager
def watching_new_threads(session: _C.DetectionSession) -> Iterator[None]:
    """Lets every thread that Python starts inside take part in a session."""
    undo = replace(threading.Thread, "_bootstrap_inner", _watched_by(session))
    try:
        yield
    finally:
        undo()


def watch_new_threads(session: _C.DetectionSession | None) -> None:
    """Lets every thread that Python starts from now on take part in a session; ``None`` ends that."""
    global _undo_threads
    with lock:
        if _undo_threads is not None:
            _undo_threads()
        _undo_threads = None if session is None else replace(threading.Thread, "_bootstrap_inner", _watched_by(session))


def _watched_by(session: _C.DetectionSession) -> Callable[[Any], Any]:
    def watched(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        @functools.wraps(run)
        def wrapper(self: threading.Thread) -> None:
            with contained("adding a thread"):
                _C.enter_session(session)
            try:
                run(self)
            finally:
                _C.leave_session(session)

        return wrapper

    return watched
