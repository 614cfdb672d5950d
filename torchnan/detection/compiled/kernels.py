"""Runs the generated code of a region once more, and finds the kernels where its non-finite values began."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection.compiled import torch_internals
from torchnan.detection.compiled.graph import as_list

Kernels = list[tuple[str, int]]  # name, and the bits of the kinds that it wrote
_NAN, _POSITIVE = 1, 2  # of these bits

_thread_state = threading.local()
_POINTERS = r"{} = async_compile\.cpp_pybinding\(\[(.*?)\]"
_LIBRARIES = ("extern_kernels", "aten", "inductor_ops", "torch")  # of kernels that are not generated
_DEPTH = 4  # of wrappers around the generated code


@dataclasses.dataclass
class _Run:
    """One run of a kernel that wrote non-finite values; ``sources`` wrote the non-finite values that it read."""

    name: str
    kinds: int
    sources: list[_Run]


class Recorder:
    """Records which kernels wrote the non-finite values in the memory of a graph, and from which others."""

    def __init__(self, is_backward: bool) -> None:
        self.is_backward = is_backward
        self.roots: Kernels = []
        self._writers: dict[int, _Run] = {}  # of non-finite values, by address

    def observe(self, name: str, reads: Sequence[Any], run: Callable[[], Any], writes: Sequence[Any]) -> Any:
        """Runs a kernel. Its results count as written, too."""
        sources = [writer for value in reads if (writer := self._writers.get(_address(value)))]
        result = run()
        made = _Run(name, 0, sources)
        for value in [*as_list(result), *writes]:
            if not isinstance(value, torch.Tensor):
                continue
            kinds = _C.kinds_of(value)
            made.kinds |= kinds
            if kinds:
                self._writers[_address(value)] = made
            else:
                self._writers.pop(_address(value), None)
        return result

    def add_results(self, results: Sequence[Any]) -> None:
        """Finds the kernels where the non-finite results and written arguments of a graph began."""
        for value in results:
            run = self._writers.get(_address(value))
            if run is None:
                continue
            while run.sources:  # a mask of -inf is seldom the source of an error
                run = max(run.sources, key=lambda source: (source.kinds & _NAN, source.kinds & _POSITIVE))
            if (run.name, run.kinds) not in self.roots:
                self.roots.append((run.name, run.kinds))


def _address(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


@contextlib.contextmanager
def recorded(is_backward: bool) -> Iterator[Kernels]:
    """Records where non-finite results began in the forward or backward graphs that this thread runs inside.

    Raises:
        UnobservableError: the block runs generated code whose kernels cannot be observed.
    """
    _thread_state.recorder = recorder = Recorder(is_backward)
    _observation.begin()
    try:
        yield recorder.roots
    finally:
        _observation.end()
        _thread_state.recorder = None


class UnobservableError(RuntimeError):
    """Generated code has kernels that cannot be observed. It may draw from the generators of the program."""


class _Observation:
    """Replaces the call of graphs while a thread observes one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # nothing of the program runs under it
        self._threads = 0
        self._original: Any = None

    def begin(self) -> None:
        holder = torch_internals.compiled_graph_class()
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                self._original = vars(holder)["__call__"]
                holder.__call__ = functools.partialmethod(_call_observed, self._original)

    def end(self) -> None:
        holder = torch_internals.compiled_graph_class()
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                holder.__call__ = self._original


def _call_observed(graph: Any, original: Callable[..., Any], inputs: Any) -> Any:
    recorder = getattr(_thread_state, "recorder", None)
    if recorder is None:
        return original(graph, inputs)
    observed = _observed(graph, recorder)
    if observed is None:
        raise UnobservableError("the kernels of its generated code cannot be observed")
    if bool(graph.fx_kwargs.get("is_backward")) != recorder.is_backward:
        return original(graph, inputs)
    given = list(inputs)  # the call empties it
    results = observed(inputs)
    recorder.add_results([*results, *given])
    return results


def _observed(graph: Any, recorder: Recorder) -> Callable[..., Any] | None:
    """Returns the generated code of a graph with its kernels observed; the code itself stays as it is."""
    method = _generated_code(graph.current_callable)
    if method is None:
        return None
    function = method.__func__
    scope = dict(function.__globals__)
    source = str(graph.source_code)
    for name in scope:
        written = _written_arguments(source, name)
        if written is not None:
            scope[name] = _observed_kernel(scope[name], name, written, recorder)
    for name in _LIBRARIES:
        if name in scope:
            scope[name] = _Library(scope[name], name, recorder)
    for name, value in list(scope.items()):  # bodies of higher-order operators
        if isinstance(value, types.FunctionType) and value.__globals__ is function.__globals__:
            scope[name] = types.FunctionType(value.__code__, scope, name, value.__defaults__, value.__closure__)
    code = types.FunctionType(function.__code__, scope, closure=function.__closure__)
    return types.MethodType(code, method.__self__)


def _generated_code(run: Any, depth: int = 0) -> types.MethodType | None:
    if isinstance(run, types.MethodType) and "extern_kernels" in run.__func__.__globals__:
        return run
    cells = getattr(run, "__closure__", None) or ()
    for cell in cells if depth < _DEPTH else ():
        found = _generated_code(cell.cell_contents, depth + 1) if callable(cell.cell_contents) else None
        if found is not None:
            return found
    return None


def _written_arguments(source: str, name: str) -> list[int] | None:
    found = re.search(_POINTERS.format(re.escape(name)), source) if name.startswith("cpp_") else None
    return found and [i for i, kind in enumerate(found[1].split(", ")) if "*" in kind and "const" not in kind]


def _observed_kernel(run: Callable[..., Any], name: str, written: list[int], recorder: Recorder) -> Callable[..., Any]:
    def observed(*args: Any) -> Any:
        return recorder.observe(name, args, functools.partial(run, *args), [args[i] for i in written])

    return observed


class _Library:
    """A library of kernels, or a part of it, whose functions are observed when they are called."""

    def __init__(self, part: Any, path: str, recorder: Recorder) -> None:
        self._part, self._path, self._recorder = part, path, recorder

    def __getattr__(self, name: str) -> Any:
        part, path = getattr(self._part, name), f"{self._path}.{name}"
        if self._path == "torch" and name != "ops":
            return part
        if isinstance(part, types.ModuleType) or (callable(part) and not isinstance(part, type)):
            return _Library(part, path, self._recorder)
        return part

    def __call__(self, *args: Any, **options: Any) -> Any:
        out = options.get("out")
        written = list(out) if isinstance(out, list | tuple) else [out]
        schema = getattr(self._part, "_schema", None)  # of an operator
        declared = () if schema is None else zip(schema.arguments, args, strict=False)
        written += [value for argument, value in declared if argument.is_write]
        run = functools.partial(self._part, *args, **options)
        return self._recorder.observe(self._path, args, run, written)


_observation = _Observation()


def run_alone(compiled: Any, inputs: list[Any]) -> None:
    """Runs the only graph behind a region on these inputs, which replace the region's own tensors."""
    (graph,) = torch_internals.compiled_graphs(compiled)
    graph(list(inputs))
