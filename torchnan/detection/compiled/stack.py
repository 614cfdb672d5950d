"""Stacks for replayed operations: frames with the user's files, lines and functions, and the calls of modules."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch

from torchnan._load import _C
from torchnan.detection import graph_code
from torchnan.detection.compiled import time_limit
from torchnan.detection.graph_code import RawFrame, full_name_of, module_stack, recorded_lines
from torchnan.detection.introspection import call_in_engine, call_in_module, engine_code

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_DYNAMO = os.path.join(_TORCH, "_dynamo", "")
_WRAPPED = "L['fn']"  # the path of a module that such a function calls
_TRACED_FROM = re.compile(r" from (.+):(\d+) in ")  # in the name of a generated file: the function that was traced


class Line(NamedTuple):
    """A source line under which a replayed operation appears."""

    file: str
    line: int
    function: str

    def is_in_function_of(self, other: Line) -> bool:
        """Whether both are in functions of the same file and name. The full name may be known of one only."""
        return self.file == other.file and self.function.rpartition(".")[2] == other.function.rpartition(".")[2]


class Engine:
    """Represents the autograd engine on a stack: frames inside of it were called by a node."""


class BackwardNode(NamedTuple):
    """A node of a backward pass that compiled autograd has traced.

    Attributes:
        name: of it, as the trace has it.
        node: the one of this backward pass; ``None`` if it is not known which.
    """

    name: str
    node: Any


Entry = Line | torch.nn.Module | Engine | BackwardNode  # a frame, the call of a module, ...; outermost first
Modules = dict[str, torch.nn.Module]  # by their key in nn_module_stack


def traced_lines(node: torch.fx.Node) -> list[Line]:
    """Returns the lines that Dynamo recorded for a node, outermost first."""
    return [Line(*line) for line in recorded_lines(node)]


def site_of(traced: torch.fx.GraphModule, compiled: Line, is_backward_pass: bool) -> Line:
    """Returns the function or module of the program in which a graph was traced.

    Args:
        traced: the graph.
        compiled: the function that was compiled: Dynamo puts one of its own around modules and functions of PyTorch.
        is_backward_pass: whether it is the graph of a backward pass, traced by compiled autograd.
    """
    if is_backward_pass:
        return Line("", 0, "backward pass of compiled autograd")
    if compiled.file.startswith(graph_code.FILE):
        return _site_of_graph_module(traced, compiled)
    if not compiled.file.startswith(_DYNAMO):
        return compiled
    stacks = (module_stack(node).values() for node in traced.graph.nodes)
    wrapped = (kind for stack in stacks for path, kind in stack if path == _WRAPPED)
    code = getattr(getattr(next(wrapped, None), "forward", None), "__code__", None)
    if code is not None:
        return Line(code.co_filename, code.co_firstlineno, full_name_of(code))
    return _first_line_of_program(traced) or compiled


def _site_of_graph_module(traced: torch.fx.GraphModule, compiled: Line) -> Line:
    """Returns a module of ``torch.fx`` that the program has compiled, with the line that its generated code is from.

    Its name is not that of a function: a frame at that line is not a call of the region.
    """
    name = f"{compiled.function} of a GraphModule"
    if (source := _TRACED_FROM.search(compiled.file)) and not is_of_torch(source[1]):
        return Line(source[1], int(source[2]), name)
    line = _first_line_of_program(traced)
    return Line("", 0, name) if line is None else line._replace(function=name)


def _first_line_of_program(traced: torch.fx.GraphModule) -> Line | None:
    lines = (line for node in traced.graph.nodes for line in traced_lines(node))
    return next((line for line in lines if not line.file.startswith((_TORCH, graph_code.FILE))), None)


def is_of_torch(file: str) -> bool:
    """Whether a file is one of PyTorch's."""
    return file.startswith(_TORCH)


def calling_stack(
    frames: Sequence[RawFrame], is_inside_node: bool = False, is_backward_pass: bool = False
) -> list[Entry]:
    """Returns the stack on which a region was called, outermost first, without torchnan's own frames.

    Args:
        frames: as the core interned them, innermost first.
        is_inside_node: whether it was called by a node of a backward pass. Then the stack begins with the engine.
        is_backward_pass: whether it is a pass that compiled autograd has traced. Then the stack ends with the engine.
    """
    entries: list[Entry] = []
    for code, line, module, _ in reversed(frames):
        if is_backward_pass and code is engine_code():
            return entries
        if is_inside_node and code is engine_code():
            entries = [Engine()]
        elif module is not None:
            entries.append(module)
        elif not code.co_filename.startswith(_OWN):
            entries.append(Line(code.co_filename, line or code.co_firstlineno, full_name_of(code)))
    return entries


def joined(callers: list[Entry], traced: list[Line]) -> list[Entry]:
    """Joins the stack of the call and that of a node: the function that was compiled is in both."""
    if traced:
        for i in range(len(callers) - 1, -1, -1):
            entry = callers[i]
            if isinstance(entry, Line) and entry.is_in_function_of(traced[0]):
                callers = callers[:i]
                break
    return [*callers, *traced]


def call_under(stack: Sequence[Entry], call: Callable[[], Any]) -> Any:
    """Calls ``call`` on a stack that shows these entries, the last of them innermost."""
    time_limit.check()
    for entry in reversed(stack):
        if isinstance(entry, torch.nn.Module):
            call = functools.partial(call_in_module, entry, call)
        elif isinstance(entry, Engine):
            call = functools.partial(call_in_engine, call)
        elif isinstance(entry, BackwardNode):
            call = functools.partial(_C.call_in_node, *entry, call)
        else:
            call = functools.partial(FunctionType(graph_code.code_at(*entry), globals()), call)
    return call()
