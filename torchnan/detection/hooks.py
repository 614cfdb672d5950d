"""Hooks on functions of PyTorch that do harm without a dispatched operation, installed while a session is open."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchnan._load import _C
from torchnan.detection import communication, handover, memory_hooks, optimizer_hooks, proved_step
from torchnan.detection.compiled import ahead_of_time, compilation, package, torch_internals
from torchnan.detection.compiled import backend as compiled_backend
from torchnan.detection.compiled.guards import Twins, without_twins
from torchnan.detection.containment import contained
from torchnan.detection.memory_hooks import Hook
from torchnan.detection.replacement import replace

lock = threading.Lock()  # for the state that threads share here and in detect; not held when the process forks
_installed = 0
_undo: list[Callable[[], None]] = []
_follows_dynamo = _follows_making_of_packages = False


def install() -> None:
    """Installs the hooks with the first of several sessions, which this thread has entered."""
    global _installed
    with lock:
        _installed += 1
        if _installed > 1:
            return
        with contained("registering higher-order operators"):
            _let_higher_order_ops_pass()
        with contained("naming code that reads addresses"):
            memory_hooks.name_address_readers()
        for hook in [*_hooks(), *memory_hooks.all_hooks()]:
            name = getattr(hook.method, "__name__", hook.method)
            with contained(f"the hook on {name}"):  # a hook that does not fit this PyTorch is left out
                _undo.append(_C.hook_method(*hook))
        with contained("the hook on Tensor.data"):
            _undo.append(_C.hook_attribute(memory_hooks.data_attribute(), _C.record_aliased))
        with contained("following compiled regions"):
            _undo.append(replace(torch_internals.inductor(), "__call__", compiled_backend.recording))
            _undo.append(replace(torch_internals.other_backends(), "__call__", compiled_backend.recording_other))
        with contained("following AOTInductor packages"):
            loader = torch_internals.package_loader_class()
            _undo.append(replace(loader, "__init__", package.loading))
            _undo.append(replace(loader, "load_constants", package.replacing_weights))
            _undo.append(replace(loader, "boxed_run", package.checking))
            if not _follow_making_of_packages():
                _undo.append(replace(*torch_internals.first_use_of_exported_programs(), _about_to_make_a_package))
        with contained("skipping the computations of a tracer"):
            _undo.append(replace(*torch_internals.dispatch_of_fake_tensors(), compilation.on_fake_tensors))
        with contained("passing by compilation"):
            if torch_internals.dynamo_is_loaded():
                _follow_dynamo(torch_internals.entry_of_compilation(), torch_internals.guards_ahead_of_time())
            else:
                for holder, name in torch_internals.first_uses_of_dynamo():
                    _undo.append(replace(holder, name, _loading_dynamo))
        with contained("following tensors to other processes"):
            _undo.append(handover.install())
        with contained("following the communication of ranks"):
            _undo.extend(communication.install())
        with contained("following optimizer steps that raise"):
            _undo.append(replace(torch.autograd.profiler.record_function, "__exit__", proved_step.ending))
        with contained("following steps that a loss scaler skips"):
            _undo.append(replace(torch.amp.GradScaler, "step", optimizer_hooks.counting_skipped))
        _undo.append(register_optimizer_step_pre_hook(optimizer_hooks.before_step).remove)
        _undo.append(register_optimizer_step_post_hook(optimizer_hooks.after_step).remove)


def uninstall() -> None:
    """Removes the hooks with the last session."""
    global _installed, _follows_dynamo, _follows_making_of_packages
    with lock:
        _installed -= 1
        if _installed > 0:
            return
        _follows_dynamo = _follows_making_of_packages = False
        while _undo:
            with contained("removing a hook"):
                _undo.pop()()


def _follow_dynamo(entry: tuple[Any, str], guards: list[tuple[Any, str]]) -> None:
    global _follows_dynamo
    _follows_dynamo = True
    _undo.append(replace(*entry, compilation.compiling))
    twins = Twins()
    _undo.append(replace(*torch_internals.compiler_of_functions(), twins.compiling))
    _undo.append(replace(*torch_internals.reasons_of_recompilation(), ahead_of_time.unwatched))
    _undo.append(replace(*torch_internals.list_of_package_entries(), without_twins))
    _undo.append(twins.remove)
    twins.add_known()
    for holder, name in guards:
        _undo.append(replace(holder, name, ahead_of_time.unwatched))
    _undo.append(replace(torch_internals.ahead_of_time_class(), "__call__", ahead_of_time.checking))


def _follow_making_of_packages() -> bool:
    global _follows_making_of_packages
    compiler = torch_internals.compiler_of_packages()
    if compiler is None:
        return False
    _follows_making_of_packages = True
    _undo.append(replace(*compiler, package.making))
    return True


def _about_to_make_a_package(use: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that is called before a package is made, once Inductor is loaded."""

    @functools.wraps(use)
    def follow_and_use(*args: Any, **options: Any) -> Any:
        with contained("following AOTInductor packages"), lock:
            if _installed and not _follows_making_of_packages:
                _follow_making_of_packages()
        return use(*args, **options)

    return follow_and_use


def _loading_dynamo(use: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that loads Dynamo anyway."""

    @functools.wraps(use)
    def load_and_use(*args: Any, **options: Any) -> Any:
        with contained("passing by compilation"):
            entry = torch_internals.entry_of_compilation()  # imports Dynamo without holding the lock
            guards = torch_internals.guards_ahead_of_time()
            with lock:
                if _installed and not _follows_dynamo:
                    _follow_dynamo(entry, guards)
        return use(*args, **options)

    return load_and_use


def _hooks() -> list[Hook]:
    tensor, engine = torch._C.TensorBase, type(torch.autograd.Variable._execution_engine)
    return [
        Hook(engine.run_backward, _C.report_backward_roots, first=1, arguments=2),
        # Operations inside a Function make no node. If it has only views, no operation records its call site.
        Hook(vars(torch._C._FunctionBase)["apply"], _C.record_call_site, arguments=0),
        # Values that the program reads. item() is an operation; these are not.
        Hook(tensor.tolist, _C.report_read),
        Hook(tensor.numpy, _C.report_read),
    ]


# -- higher-order operators list their dispatch keys one by one, and refuse unknown keys


def _let_higher_order_ops_pass() -> None:
    key = torch._C._parse_dispatch_key(_C.interceptor_key_name())
    assert key is not None  # the core has registered kernels on it
    defaults = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if key not in defaults:
        defaults.append(key)
    for op in torch._ops._higher_order_ops.values():
        op.fallthrough(key)  # type: ignore[no-untyped-call]
