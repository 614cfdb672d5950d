"""Code that ``torch.fx`` generates for a graph. Backends of ``torch.compile`` without kernels run it; its frames are
mapped to the lines and modules of the program that a tracer recorded."""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import torch

from torchnan._load import _C

RawFrame = tuple[CodeType, int, "torch.nn.Module | None", int]  # code, line, module, instruction; innermost first

FILE = "<eval_with_key>"  # prefix of the file name of such code
_FRAME = re.compile(r'File "(.*?)", line (\d+), in (.*)')
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_CALL = (lambda call: call()).__code__

# The full names of functions that Dynamo has traced, by file, name and first line: it records only the names.
_full_names: dict[tuple[str, str], dict[int, str]] = {}
_graphs: dict[str, weakref.ref[torch.fx.GraphModule]] = {}  # by file name, which is unique for each graph
_MAX_GRAPHS = 1000


def recorded_lines(node: torch.fx.Node) -> list[tuple[str, int, str]]:
    """Returns the file, line and function that a tracer recorded for a node, outermost first."""
    lines = [(file, int(line), name) for file, line, name in _FRAME.findall(node.stack_trace or "")]
    return [(file, line, _full_name(file, line, name)) for file, line, name in lines]


def module_stack(node: torch.fx.Node) -> dict[str, Any]:
    """Returns the modules in which a node was traced; for a backward pass, those of its forward operation."""
    return node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}


def modules_by_key(keys: Iterable[str]) -> dict[str, torch.nn.Module]:
    """Returns the modules that are alive, by their key in ``nn_module_stack``, which begins with their ``id()``."""
    ids = {key: int(digits[0]) for key in keys if (digits := re.match(r"\d+", key))}
    if not ids:
        return {}
    alive = {id(module): module for module in _C.instances_of(torch.nn.Module)}
    return {key: alive[number] for key, number in ids.items() if number in alive}


def full_name_of(code: CodeType) -> str:
    """Returns the name of a function with its enclosing names, ``Block.forward``; before Python 3.11 without them."""
    return getattr(code, "co_qualname", code.co_name)


def remember_names(codes: Iterable[CodeType]) -> None:
    """Remembers the full names of functions for the lines in them."""
    for code in codes:
        _full_names.setdefault((code.co_filename, code.co_name), {})[code.co_firstlineno] = full_name_of(code)


def _full_name(file: str, line: int, function: str) -> str:
    known = _full_names.get((file, function), {})
    return next((known[first] for first in sorted(known, reverse=True) if first <= line), function)


@functools.cache
def code_at(file: str, line: int, function: str) -> CodeType:
    """Returns code at a line of the program that calls its argument. It is cached, so that every replay has the same
    call sites."""
    names: dict[str, Any] = {"co_name": function.rpartition(".")[2]}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = function
    return _CALL.replace(co_filename=file, co_firstlineno=line, **names)


def first_frame(frames: list[RawFrame]) -> int | None:
    """Returns the index of the innermost frame of such code; ``None`` if there is none."""
    return next((i for i, frame in enumerate(frames) if frame[0].co_filename.startswith(FILE)), None)


def as_traced(frames: list[RawFrame], module_call: CodeType) -> list[RawFrame]:
    """Returns a stack in which frames of the program replace the innermost frame of such code. The compiled function is
    both in the trace and further out: it appears only once.

    Args:
        frames: the stack, innermost first.
        module_call: the code of the frame of a module's call.
    """
    found = first_frame(frames)
    if found is None:
        return frames
    code, line, *_ = frames[found]
    node = _node_at(code, line)
    lines = recorded_lines(node) if node is not None else []
    if node is None or not lines:
        return frames
    outside = frames[found + 1 :]
    inner = _frames_down_to(outside, lines[0][0], lines[0][2])
    traced: list[RawFrame] = [(code_at(*one), one[1], None, -1) for one in reversed(lines)]
    modules = list(modules_by_key(module_stack(node)).values())  # outermost first
    calls: list[RawFrame] = [(module_call, 0, module, -1) for module in reversed(modules)]
    called = [frame for frame in outside[:inner] if frame[2] is not None and not _is_graph(frame[2])]
    return [*traced, *calls, *called, *outside[inner:]]


def split_at_backward(frames: list[RawFrame]) -> tuple[list[RawFrame], list[RawFrame]]:
    """Splits a traced stack, innermost first, at the ``backward`` of an ``autograd.Function``.

    Returns:
        The frames of that method and of what it calls, none if there is no such method; and those outside of it.
    """
    for i in range(len(frames) - 1, -1, -1):
        code, line, module, instruction = frames[i]
        if code.co_name == "backward":
            for name in functions_at([(code.co_filename, line, code.co_name)], ("backward",)):
                named = code_at(code.co_filename, line, f"{name}.backward")
                return [*frames[:i], (named, line, module, instruction)], frames[i + 1 :]
    return [], frames


def functions_at(lines: Iterable[tuple[str, int, str]], methods: Iterable[str]) -> Iterator[str]:
    """Yields the names of the classes of ``autograd.Function`` that have one of these lines in one of these methods."""
    pending: list[Any] = [torch.autograd.Function]
    while pending:
        kind = pending.pop()
        pending.extend(kind.__subclasses__())
        for method in methods:
            code = getattr(getattr(kind, method), "__code__", None)
            if code is not None and any(_is_in(code, line) for line in lines):
                yield kind.__name__


def _is_in(code: CodeType, line: tuple[str, int, str]) -> bool:
    file, number, function = line
    if (code.co_filename, code.co_name) != (file, function.rpartition(".")[2]):
        return False
    return code.co_firstlineno <= number <= max(number or 0 for _, _, number in code.co_lines())


def _frames_down_to(frames: list[RawFrame], file: str, function: str) -> int:
    """Returns how many frames lead from a compiled function to the code of its graph. The last of them are those of the
    function: several if it was resumed after graph breaks."""
    own = [frame[0].co_filename == file and plain_name(frame[0].co_name) == plain_name(function) for frame in frames]
    count = own.index(True) + 1 if True in own else 0
    while 0 < count < len(own) and own[count]:
        count += 1
    return count


def _is_graph(module: torch.nn.Module) -> bool:
    return issubclass(type(module), torch.fx.GraphModule)


def plain_name(function: str) -> str:
    """Returns the name of a function without its enclosing names. After a graph break Dynamo resumes in a generated
    function, whose name contains the original one."""
    name = function.rpartition(".")[2]
    resumed = _RESUMED.fullmatch(name)
    return resumed[1] if resumed else name


def _node_at(code: CodeType, line: int) -> torch.fx.Node | None:
    """Returns the node whose code is on a line."""
    graph = _graph_of(code)
    index = (getattr(graph, "_lineno_map", None) or {}).get(line - code.co_firstlineno)
    if graph is None or index is None:
        return None
    nodes = list(graph.graph.nodes)
    return nodes[index] if index < len(nodes) else None


def _graph_of(code: CodeType) -> torch.fx.GraphModule | None:
    """Returns the module whose ``forward`` is this code: each module has its own class."""
    known = _graphs.get(code.co_filename)
    if known is not None:
        return known()
    if len(_graphs) >= _MAX_GRAPHS:
        _graphs.clear()
    graphs: list[torch.fx.GraphModule] = _C.instances_of(torch.fx.GraphModule)
    for graph in graphs:
        forward = vars(type(graph)).get("forward")
        if getattr(forward, "__code__", None) is code:
            _graphs[code.co_filename] = weakref.ref(graph)
            return graph
    return None
