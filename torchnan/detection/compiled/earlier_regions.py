"""Regions that were compiled before detection began. Their code is used as it is; what was recorded about a region when
it was compiled is found again: PyTorch keeps the graph that Dynamo traced as long as the code."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from torchnan.detection import graph_code
from torchnan.detection.compiled import backend, torch_internals

_regions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # checked functions, by those of Dynamo
_replaced: list[tuple[dict[str, Any], str, Any, Any]] = []  # globals of the program's functions
_unnamed: list[torch.fx.GraphModule] = []  # graphs of regions that are new here


def follow(code: CodeType, compiled: CodeType, guards: Any) -> bool:
    """Makes compiled code call its regions so that they are checked. Returns whether all of them can be followed.

    Args:
        code: of the function that was compiled.
        compiled: the code that Dynamo runs in its place.
        guards: of the compiled code.
    """
    for scope, name in torch_internals.graph_functions(compiled):
        function = scope.get(name)
        if function is None or hasattr(function, "__torchnan_region__"):
            continue
        if function not in _regions:
            if not backend.is_code_of_inductor(torch_internals.undisabled(function)):
                continue
            region = _region_of(code, function, guards)
            if region is None:
                return False
            _regions[function] = region
        scope[name] = _regions[function]
        _replaced.append((scope, name, function, _regions[function]))
    return True


def restore() -> None:
    """Makes the code that :func:`follow` was given call its regions as before."""
    while _replaced:
        scope, name, function, checked = _replaced.pop()
        if scope.get(name) is checked:
            scope[name] = function


def release(functions: Iterable[tuple[dict[str, Any], str]]) -> None:
    """Releases the functions of graphs in these global variables, which Dynamo deletes with the code."""
    for scope, name in functions:
        if name in scope:
            scope[name] = None
        _replaced[:] = [one for one in _replaced if one[0] is not scope or one[1] != name]


def remember_names() -> None:
    """Finds the full names of the functions in which new regions were traced: a graph has only their last part."""
    graphs = [_unnamed.pop() for _ in range(len(_unnamed))]
    nodes = (node for graph in graphs for node in graph.graph.nodes)
    files = {file for node in nodes for file, _, _ in graph_code.recorded_lines(node)}
    for module in list(sys.modules.values()) if files else ():
        variables = getattr(module, "__dict__", {})
        if variables.get("__file__") in files:
            graph_code.remember_names(_codes_in(variables.values(), set()))


def _codes_in(values: Iterable[Any], seen: set[int]) -> Iterator[CodeType]:
    """Yields the code of functions, of methods of classes, and of the functions and classes inside them.

    Runs no code of the program: it looks only at types of Python.

    Args:
        values: of which some may be functions or classes, or code.
        seen: the ids of the classes that were looked at.
    """
    for value in list(values):
        if issubclass(type(value), type) and id(value) not in seen:
            seen.add(id(value))
            yield from _codes_in(type.__dict__["__dict__"].__get__(value).values(), seen)
        value = value.__func__ if type(value) in (staticmethod, classmethod) else value
        while type(value) is FunctionType and "__wrapped__" in value.__dict__:
            value = value.__dict__["__wrapped__"]
        code = value.__code__ if type(value) is FunctionType else value
        if type(code) is CodeType:
            yield code
            yield from _codes_in(code.co_consts, seen)


def _region_of(code: CodeType, function: Any, guards: Any) -> Any:
    """Returns the function that runs a region and checks it; ``None`` if its graph is unknown."""
    compiled = torch_internals.undisabled(function)
    graph = torch_internals.traced_graph(compiled)
    if graph is None or torch_internals.is_backward_pass(code):
        return None
    _unnamed.append(graph)
    names = torch_internals.names_of_arguments(graph, guards)
    arguments = len(graph.graph.find_nodes(op="placeholder"))
    kept = backend.kept(graph, torch_internals.site_of(code), arguments, names)
    return torch.compiler.disable(kept(compiled))  # type: ignore[no-untyped-call]
