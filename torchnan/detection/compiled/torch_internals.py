"""The private names of PyTorch that following compiled regions relies on."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import logging
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection.compiled.stack import Line

_NAMES = (
    "torch._TorchCompileInductorWrapper.__call__",
    "torch._TorchCompileWrapper.__init__",
    "torch._TorchCompileWrapper.__call__",
    "torch._dynamo.callback.CompilationCallbackHandler.install_callbacks",
    "torch._subclasses.fake_tensor.FakeTensorMode.__torch_dispatch__",
    "torch._inductor.compile_fx.compile_fx",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.output_code.CompiledFxGraph.__call__",
    "torch._functorch.config.enable_autograd_cache",
    "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta",
    "torch._C._aoti.AOTIModelPackageLoader.boxed_run",
    "torch._C._aoti.AOTIModelPackageLoader.load_constants",
    "torch._inductor.aot_compile",
    "torch.export.ExportedProgram.module",
    "torch._C._dynamo.eval_frame._debug_get_cache_entry_list",
    "torch._C._dynamo.eval_frame._debug_get_precompile_entries",
    "torch._C._dynamo.eval_frame._load_precompile_entry",
    "torch._C._dynamo.eval_frame._reset_precompile_entries",
    "torch._dynamo.convert_frame.CatchErrorsWrapper.__call__",
    "torch._dynamo.convert_frame.input_codes",
    "torch._dynamo.eval_frame._stance",
    "torch._dynamo.guards.get_and_maybe_log_recompilation_reasons",
    "torch._dynamo.guards.GuardManagerWrapper",
    "torch._dynamo.utils.CleanupManager.instance",
    "torch._dynamo.aot_compile.aot_compile_fullgraph",
    "torch._dynamo.aot_compile.AOTCompiledFunction.__post_init__",
    "torch._dynamo.aot_compile.AOTCompiledFunction.guard_check",
    "torch._dynamo.aot_compile_types.BundledAOTAutogradSerializableCallable.__call__",
    "torch._dynamo.compiled_autograd.in_compiled_autograd_region",
    "torch._dynamo.eval_frame.skip_code",
    "torch._C._dynamo.eval_frame.set_eval_frame",
    "torch._prims.rng_prims.run_and_save_rng_state",
    "torch._prims.rng_prims.run_with_rng_state",
    "torch._C._functorch.get_dynamic_layer_stack_depth",
    "torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth",
    "torch.autograd.forward_ad._current_level",
    "torch._guards.TracingContext.try_get",
    "torch._C._distributed_c10d.FakeProcessGroup._create_internal",
    "torch._C._distributed_c10d._resolve_process_group",
    "torch._C._distributed_c10d._register_process_group",
    "torch._C._distributed_c10d._unregister_process_group",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
)
_PASSES = (  # of the program, in torch._inductor.config
    "pre_grad_custom_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
    "custom_partitioner_fn",
    "_pre_fusion_custom_pass",
    "_post_fusion_custom_pass",
)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]+")  # of the arguments of a graph
_UNPACKED = re.compile(r"^ *(\S.*) = args$", re.MULTILINE)
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")


def missing() -> list[str]:
    """Returns those of the private names that this PyTorch lacks. Imports Inductor."""
    return [name for name in _NAMES if not _exists(name)]


def _exists(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for attribute in parts[length:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def inductor() -> Any:
    """Returns the class whose call compiles a graph with Inductor (``torch/__init__.py``)."""
    return torch._TorchCompileInductorWrapper


def other_backends() -> Any:
    """Returns the class whose call compiles a graph with another backend (``torch/__init__.py``)."""
    return torch._TorchCompileWrapper


def package_loader_class() -> Any:
    """Returns the class that loads and runs AOTInductor packages; it is written in C++."""
    return torch._C._aoti.AOTIModelPackageLoader


def compiler_of_packages() -> tuple[Any, str] | None:
    """Returns the function that compiles exported programs for AOTInductor packages, and its holder; ``None`` as long
    as the program has not imported Inductor, which takes two seconds."""
    holder = sys.modules.get("torch._inductor")
    return (holder, "aot_compile") if hasattr(holder, "aot_compile") else None


def first_use_of_exported_programs() -> tuple[Any, str]:
    """Returns the function that is called for an exported program before it is compiled, and its holder."""
    return torch.export.ExportedProgram, "module"


def dynamo_is_loaded() -> bool:
    """Whether the program has imported Dynamo, which takes two seconds."""
    return "torch._dynamo.aot_compile" in sys.modules


def first_uses_of_dynamo() -> list[tuple[Any, str]]:
    """Returns the functions that compile a function or load a compiled one, with their holders."""
    compilers = (inductor(), other_backends())
    return [*((compiler, "__init__") for compiler in compilers), (torch.compiler, "load_compiled_function")]


def entry_of_compilation() -> tuple[Any, str]:
    """Returns the context manager that Dynamo enters to compile, forward or backward, and its holder."""
    from torch._dynamo.callback import CompilationCallbackHandler

    return CompilationCallbackHandler, "install_callbacks"


def dispatch_of_fake_tensors() -> tuple[Any, str]:
    """Returns the function that runs operations on fake tensors, for every tracer, and its holder."""
    return torch._subclasses.fake_tensor.FakeTensorMode, "__torch_dispatch__"


def guards_ahead_of_time() -> list[tuple[Any, str]]:
    """Returns the functions that make or check guards of functions compiled ahead of time, and their holders."""
    from torch._dynamo import aot_compile

    function = aot_compile.AOTCompiledFunction
    return [(aot_compile, "aot_compile_fullgraph"), (function, "__post_init__"), (function, "guard_check")]


def ahead_of_time_class() -> Any:
    """Returns the class of the generated code of functions that were compiled ahead of time."""
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable

    return BundledAOTAutogradSerializableCallable


def compiled_graph_class() -> Any:
    """Returns the class of Inductor's result for a graph, forward or backward."""
    from torch._inductor.output_code import CompiledFxGraph

    return CompiledFxGraph


def generates_no_code() -> bool:
    """Whether Inductor calls PyTorch's own operators in place of generated code, as in its ``lite`` mode."""
    from torch._inductor import config

    return bool(getattr(config, "fallback_by_default", False))


def operators_with_random_state() -> tuple[Any, Any]:
    """Returns the operators that run another one and return the random state before it, or set that state first."""
    from torch._prims import rng_prims

    return rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state


class CompilerIsBusyError(Exception):
    """Another thread compiles, and may wait for what this thread has locked."""


@contextlib.contextmanager
def unnoticed_compilation() -> Iterator[None]:
    """Lowers and compiles graphs without the passes, caches, counters, callbacks and logs of the program.

    Raises:
        CompilerIsBusyError: another thread holds the lock of the compiler.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    if not compile_lock.acquire(blocking=False):
        raise CompilerIsBusyError("another thread was compiling")
    counted = {name: counter.copy() for name, counter in counters.items()}
    passes = {name: None for name in _PASSES if hasattr(inductor_config, name)}
    try:
        with (
            inductor_config.patch(passes),
            functorch_config.patch(enable_autograd_cache=False),
            without_logs(),
        ):
            yield
    finally:
        counters.clear()
        counters.update(counted)
        compile_lock.release()


class _NotOfReplay(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _C.is_replaying()  # on this thread, which makes the record


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
    """Drops what PyTorch logs on a thread that replays a call."""
    known = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(one for one in known if isinstance(one, logging.Logger))]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    if logging.lastResort is not None:
        handlers.add(logging.lastResort)
    of_replay = _NotOfReplay()
    for handler in handlers:
        handler.addFilter(of_replay)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(of_replay)


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """Runs the functions that the block calls as they are: Dynamo neither compiles them nor looks for compiled code."""
    if not dynamo_is_loaded():
        yield
        return
    set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
    before = set_eval_frame(None)
    try:
        yield
    finally:
        set_eval_frame(before)


@contextlib.contextmanager
def group_that_moves_nothing(original: str, name: str) -> Iterator[str]:
    """Registers a process group whose collectives return at once, and leave their tensors as they are.

    Args:
        original: the name of a process group, which gives the rank and the number of ranks.
        name: of the group that is made, which must be new.
    """
    c10d: Any = torch._C._distributed_c10d
    known = c10d._resolve_process_group(original)
    group = c10d.ProcessGroup(known.rank(), known.size())
    backend = c10d.FakeProcessGroup._create_internal(known.rank(), known.size())
    kind = c10d.ProcessGroup.BackendType.CUSTOM
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_default_backend(kind)
    group._set_group_name(name)
    c10d._register_process_group(name, group)
    try:
        yield name
    finally:
        c10d._unregister_process_group(name)


@contextlib.contextmanager
def without_open_transforms() -> Iterator[None]:
    """Leaves the transforms of ``torch.func`` that the block has entered, and not left because of an error."""
    functorch, forward_ad = torch._C._functorch, torch.autograd.forward_ad
    depth, level = functorch.get_dynamic_layer_stack_depth(), forward_ad._current_level
    try:
        yield
    finally:
        while forward_ad._current_level > level:
            forward_ad.exit_dual_level(level=forward_ad._current_level)  # type: ignore[no-untyped-call]
        if functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def is_transform(target: Any) -> bool:
    """Whether what a node of a graph calls belongs to a transform of ``torch.func``."""
    return "functorch" in str(getattr(target, "__module__", ""))


def function_class(node: Any) -> Any:
    """Returns the ``autograd.Function`` of a node in Python."""
    return type(node)._forward_cls


def skip_in_dynamo(function: Any) -> None:
    """Keeps Dynamo from tracing a function when a compiled program calls it; functions that it calls may be traced."""
    from torch._dynamo.eval_frame import skip_code

    skip_code(function.__code__)


def undisabled(function: Any) -> Any:
    """Returns the function that ``torch.compiler.disable()`` has wrapped, or else the function itself."""
    is_wrapper = getattr(function, "_torchdynamo_disable", False)
    return getattr(function, "_torchdynamo_orig_callable", function) if is_wrapper else function


def runs_compiled_autograd() -> bool:
    """Whether a backward pass that compiled autograd has traced runs, or is compiled to be run."""
    from torch._dynamo import compiled_autograd

    return bool(compiled_autograd.in_compiled_autograd_region)


def site_of_traced_function() -> Line:
    """Returns the function that Dynamo compiles on this thread at present."""
    context = torch._guards.TracingContext.try_get()
    environment = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    fields = getattr(environment, "co_fields", None)
    if not fields:
        return Line("", 0, "")
    return _site(str(fields["co_filename"]), int(fields["co_firstlineno"]), str(fields["co_name"]))


def site_of(code: types.CodeType) -> Line:
    """Returns the function that Dynamo has compiled."""
    return _site(code.co_filename, code.co_firstlineno, code.co_name)


def _site(file: str, line: int, name: str) -> Line:
    if resumed := _RESUMED.match(name):
        return Line(file, int(resumed[2]), resumed[1])
    return Line(file, line, name)


def graph_functions(compiled: types.CodeType) -> list[tuple[dict[str, Any], str]]:
    """Returns the global variables that hold the functions of the graphs which compiled code calls: scope and name."""
    from torch._dynamo.utils import CleanupManager

    installed = CleanupManager.instance.get(compiled, [])
    return [(one.scope, one.name) for one in installed if one.name.startswith("__compiled_fn")]


def traced_graph(compiled: Any) -> torch.fx.GraphModule | None:
    """Returns the graph, as Dynamo has traced it, of a function that AOTAutograd has made of it."""
    graph = getattr(getattr(compiled, "zero_grad", None), "__self__", None)
    return graph if isinstance(graph, torch.fx.GraphModule) else None


def is_backward_pass(code: types.CodeType) -> bool:
    """Whether a function is a backward pass that compiled autograd has traced."""
    return code.co_varnames[:5] == ("self", "inputs", "sizes", "scalars", "hooks")


def names_of_arguments(graph: torch.fx.GraphModule, guards: Any) -> list[str]:
    """Returns Dynamo's names for the arguments of a graph that it has compiled; empty for those without guards."""
    names: dict[str, str] = {}
    pending = [guards.root]
    while pending:
        manager = pending.pop()
        source = manager.get_source()
        names[_NOT_IN_NAMES.sub("_", source)] = source
        pending.extend(manager.get_child_managers())
    return [names.get(str(node.target), "") for node in graph.graph.find_nodes(op="placeholder")]


def compiled_functions() -> list[types.CodeType]:
    """Returns the code of all functions that Dynamo has been asked to compile."""
    from torch._dynamo.convert_frame import input_codes

    return [code for known in list(input_codes.seen) if (code := known()) is not None]


def compiler_of_functions() -> tuple[Any, str]:
    """Returns the function that Dynamo calls for a function without code for a call, and its holder."""
    from torch._dynamo.convert_frame import CatchErrorsWrapper

    return CatchErrorsWrapper, "__call__"


def reasons_of_recompilation() -> tuple[Any, str]:
    """Returns the function that checks guards again to say why they failed, and its holder."""
    return sys.modules["torch._dynamo.guards"], "get_and_maybe_log_recompilation_reasons"


def list_of_package_entries() -> tuple[Any, str]:
    """Returns the function that lists the entries of packages of compiled code, and its holder."""
    return torch._C._dynamo.eval_frame, "_debug_get_precompile_entries"


def cache_entries(code: types.CodeType) -> list[Any]:
    """Returns Dynamo's compiled code for a function, the one that it prefers first."""
    return list(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code))


def scope_of(entry: Any) -> int:
    """Returns the scope of compiled code, see :func:`current_scope`."""
    return int(getattr(entry, "isolate_recompiles_id", -1))


def current_scope() -> int:
    """Returns which ``torch.compile(..., isolate_recompiles=True)`` runs on this thread: its code is apart; else -1."""
    current = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_isolate_recompiles_id", None)
    return -1 if current is None else int(current())


def package_entries(code: types.CodeType) -> list[Any]:
    """Returns the entries for a function that packages of compiled code have, and that Dynamo looks at first."""
    return list(inspect.unwrap(torch._C._dynamo.eval_frame._debug_get_precompile_entries)(code))


def add_package_entry(code: types.CodeType, check: Any, compiled: types.CodeType) -> Any:
    """Adds an entry for a function, and returns its ``guard_manager``.

    Args:
        code: of the function.
        check: whether the entry is to be used for a call, given its local variables.
        compiled: the code to run.
    """
    from torch._dynamo.guards import GuardManagerWrapper

    guards = GuardManagerWrapper()
    guards.root.add_lambda_guard(check, ["torchnan"], None)
    torch._C._dynamo.eval_frame._load_precompile_entry(code, guards, compiled)
    return guards


def remove_package_entries(code: types.CodeType) -> None:
    """Removes all such entries of a function, unless another thread runs compiled code and may be looking at them."""
    kept = [entry.guard_manager for entry in package_entries(code)]  # so that no destructor runs
    remove = functools.partial(torch._C._dynamo.eval_frame._reset_precompile_entries, code)
    _C.call_unless_running(callback_of_compiled()[0], remove)
    kept.clear()


@functools.cache
def callback_of_compiled() -> tuple[types.CodeType, int]:
    """Returns the code of the function that runs a compiled one in its place, and the index of its free variable that
    Dynamo calls to compile."""
    from torch._dynamo.eval_frame import _TorchDynamoContext

    codes = (one for one in _TorchDynamoContext.__call__.__code__.co_consts if isinstance(one, types.CodeType))
    around = next(one for one in codes if "callback" in one.co_freevars)
    return around, around.co_freevars.index("callback")


def backend_of(callback: Any) -> Any:
    """Returns the backend of what Dynamo calls for a function that it is to compile."""
    while (inner := getattr(callback, "_torchdynamo_orig_backend", None)) is not None:
        callback = inner
    return callback


def traced_code() -> list[types.CodeType]:
    """Returns the code that Dynamo has traced into the graph that this thread compiles at present."""
    context = torch._guards.TracingContext.try_get()
    return list(getattr(context, "traced_code", None) or ())


def compile_graph(module: torch.fx.GraphModule, inputs: list[Any], inner_compile: Any) -> Any:
    """Lowers a graph of Dynamo for its inputs like Inductor, with a custom compiler for the lowered graph."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, inputs, inner_compile=inner_compile)


def compiled_graphs(root: Any) -> list[Any]:
    """Finds Inductor's results for the graphs behind a callable."""
    if "torch._inductor.output_code" not in sys.modules:  # importing it takes two seconds
        return []
    return found_behind(root, compiled_graph_class())


def overwritten_inputs(root: Any, count: int) -> list[int] | None:
    """Returns the indices of the inputs that what is behind a callable overwrites; ``None`` if it is not known which.

    Where gradients are needed, what is overwritten is copied back outside of the code that Inductor generated, which
    then knows nothing of it. Inputs that share memory have become one: an index is then that of another input.

    Args:
        root: the callable, as Inductor made it of a graph.
        count: of the graph's inputs: its own tensors and the arguments.
    """
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

    made = [graph for graph in compiled_graphs(root) if not graph.fx_kwargs.get("is_backward")]
    found = [(_count_of_inputs(graph), graph.mutated_input_idxs) for graph in made]
    if described := [one.input_info for one in found_behind(root, ViewAndMutationMeta)]:
        found = [(len(inputs), _overwritten(inputs)) for inputs in described]
    overwritten = next((indices for length, indices in found if length == count), None)
    if overwritten is None and any(indices for _, indices in found):
        return None
    return sorted(overwritten or ())


def _overwritten(inputs: list[Any]) -> list[int]:
    return [i for i, one in enumerate(inputs) if one.mutates_data or one.mutates_metadata]


def _count_of_inputs(made: Any) -> int | None:
    """Returns how many inputs generated code unpacks: code in C++ does not tell."""
    unpacked = _UNPACKED.search(str(made.source_code))
    return unpacked and len(unpacked[1].strip(",").split(","))


def found_behind(root: Any, kind: type, limit: int = 20_000) -> list[Any]:
    """Returns the instances of a class behind a callable: PyTorch hands out no reference to them."""
    seen: set[int] = {id(root)}
    pending: list[Any] = [root]
    found: list[Any] = []
    while pending and len(seen) < limit:
        for item in gc.get_referents(pending.pop(0)):
            if id(item) in seen or isinstance(item, types.ModuleType | torch.Tensor | torch.fx.Graph | str | int):
                continue
            if isinstance(item, type) and item.__name__ != "CompiledFunction":
                continue
            if isinstance(item, dict) and "__builtins__" in item:
                continue
            seen.add(id(item))
            (found if isinstance(item, kind) else pending).append(item)
    return found
