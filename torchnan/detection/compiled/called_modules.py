"""The modules of one call of a region: identical modules share code that was compiled once."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import ClassVar, NamedTuple

import torch

from torchnan._load import _C
from torchnan.detection.compiled.stack import Entry, Line, Modules, is_of_torch
from torchnan.detection.graph_code import module_stack, modules_by_key, plain_name
from torchnan.detection.tensor_names import parts

Path = tuple[str, ...]  # from a variable of the compiled function to a module or tensor: ("L['block']", "l", "weight")

_VARIABLE = re.compile(r"[LG]\['(\w+)'\]")
_STEP = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]|\[(?:'([^']*)'|(\d+))\]|\.([^.\[]+)")
_GRADIENT = re.compile(r"\.param_groups\[(\d+)\]\['params'\]\[(\d+)\]\.grad$")
_SELF: Path = ("L['self']",)
_KINDS = ("_parameters", "_buffers", "_modules")  # of the parts of a module


class TracedModule(NamedTuple):
    """A module that nodes were traced in.

    Attributes:
        module: it, while it is alive.
        kind: its class.
        path: where the compiled function has it; empty if that is not known.
    """

    module: weakref.ref[torch.nn.Module]
    kind: type
    path: Path


class Source(NamedTuple):
    """A parameter or buffer that is an argument of a region.

    Attributes:
        argument: its index.
        path: where the compiled function has it.
    """

    argument: int
    path: Path


class Gradient(NamedTuple):
    """The gradient of an optimizer's parameter that is an argument of a region.

    Attributes:
        argument: its index.
        group: of the parameter in the optimizer.
        position: in that group.
    """

    argument: int
    group: int
    position: int


def modules_of(traced: torch.fx.GraphModule) -> dict[str, TracedModule]:
    """Returns the modules in which the nodes of a graph and of its inner graphs were traced, by their key in
    ``nn_module_stack``.

    Dynamo's keys begin with the ``id()`` of the module, which is alive while its graph is compiled.
    """
    graphs = [module.graph for module in traced.modules() if isinstance(module, torch.fx.GraphModule)]
    stacks = (module_stack(node) for graph in graphs for node in graph.nodes)
    paths = {key: str(path) for stack in stacks for key, (path, _) in stack.items()}
    modules = modules_by_key(paths).items()
    return {key: TracedModule(weakref.ref(module), type(module), path_of(paths[key])) for key, module in modules}


def sources_among(names: Sequence[str]) -> list[Source]:
    """Returns the parameters and buffers among the arguments of a graph, by Dynamo's names for the arguments."""
    found = ((i, name) for i, name in enumerate(names) if "._parameters[" in name or "._buffers[" in name)
    return [Source(i, path_of(name)) for i, name in found]


def gradient_of_optimizer(names: Sequence[str]) -> Gradient | None:
    """Returns one of the gradients of an optimizer's parameters among the arguments of a graph.

    Returns ``None`` for a graph that is not the step of an optimizer.

    Args:
        names: Dynamo's names for the arguments.
    """
    matches = ((i, _GRADIENT.search(name)) for i, name in enumerate(names))
    return next((Gradient(i, int(match[1]), int(match[2])) for i, match in matches if match is not None), None)


def names_of_arguments(traced: torch.fx.GraphModule) -> list[str]:
    """Returns Dynamo's names for the arguments of a graph while it is compiled; empty if they are unknown."""
    sources = (getattr(node.meta.get("grapharg"), "source", None) for node in traced.graph.find_nodes(op="placeholder"))
    names = (getattr(source, "name", "") for source in sources)
    return [str(name() if callable(name) else name) for name in names]


def path_of(source: str) -> Path:
    """Parses Dynamo's name of a value: ``"L['self']._modules['l']._parameters['weight']"``, ``"L['self'].l"``."""
    variable = _VARIABLE.match(source)
    if variable is None:
        return ()
    steps = _STEP.findall(source[variable.end() :])
    return (variable[0], *(next(filter(None, step), "") for step in steps))


def modules_of_call(
    traced: dict[str, TracedModule],
    weights: Sequence[tuple[Path, int]],
    callers: Sequence[Entry],
    compiled: Line,
    frame: FrameType | None = None,
) -> Modules:
    """Returns the modules of one call of a region, by their key in ``nn_module_stack``.

    Args:
        traced: those that the region was traced in.
        weights: the ids of the parameters and buffers that the call was given, with their paths.
        callers: the stack on which it was called, outermost first.
        compiled: the function that was compiled.
        frame: one inside the call, while it lasts.
    """
    if not traced:
        return {}
    known, shared = _owners(traced, weights)
    caller = _module_that_calls(callers, compiled)
    if caller is not None:
        known.setdefault(_SELF, caller)
    for variable, module in arguments_of(frame, compiled):
        known.setdefault((variable,), module)
    found = {}
    for key, one in traced.items():
        called = _module_below(known, one)
        if called is None and one.path not in shared:
            called = one.module()
        if called is not None:
            found[key] = called
    return found


def _owners(
    traced: dict[str, TracedModule], weights: Sequence[tuple[Path, int]]
) -> tuple[dict[Path, torch.nn.Module], set[Path]]:
    """Returns the modules that hold the weights of a call, and those around them, by path; and the paths of those that
    share their weights with others, so that these do not tell which of them was called."""
    if not weights:
        return {}, set()
    holders = _Holders()
    kinds = {one.path: one.kind for one in traced.values()}
    known: dict[Path, torch.nn.Module] = {}
    shared = set()
    for path, weight in weights:
        fitting = _fitting(holders.of(weight, path[-1]), kinds.get(path[:-1]))
        if len(fitting) == 1:
            known.setdefault(path[:-1], fitting[0])
        elif fitting:
            shared.add(path[:-1])
    for inner in list(known):
        path = inner
        while len(path) > 1:
            around = _fitting(holders.of(known[path], path[-1]), kinds.get(path[:-1]))
            if len(around) != 1 or path[:-1] in known:
                break
            path = path[:-1]
            known[path] = around[0]
    return known, shared


class _Holders:
    """Finds the modules that have a parameter, a buffer or another module under a name.

    To look through all objects of the process takes long. So what was found the last time is used as long as it holds:
    a module that has come to share a part since then is not noticed.
    """

    _found: ClassVar[dict[tuple[int, str], list[weakref.ref[torch.nn.Module]]]] = {}

    def __init__(self) -> None:
        self._is_new = False

    def of(self, part: torch.nn.Module | int, name: str) -> list[torch.nn.Module]:
        """Returns the modules that have a part, a module or the ``id()`` of a tensor, under this name."""
        key = part if isinstance(part, int) else id(part), name
        known = [reference() for reference in self._found.get(key, ())]
        holders = [module for module in known if module is not None and _has(module, *key)]
        if (holders and len(holders) == len(known)) or self._is_new:
            return holders
        self._look_everywhere()
        return self.of(part, name)

    def _look_everywhere(self) -> None:
        found: dict[tuple[int, str], list[weakref.ref[torch.nn.Module]]] = {}
        for module in _C.instances_of(torch.nn.Module):
            if not issubclass(type(module), torch.fx.GraphModule):
                for name, part in itertools.chain.from_iterable(parts(module, kind) for kind in _KINDS):
                    found.setdefault((id(part), name), []).append(weakref.ref(module))
        _Holders._found = found  # at once: another thread may look there
        self._is_new = True


def _has(module: torch.nn.Module, part: int, name: str) -> bool:
    return any(id(module.__dict__.get(kind, {}).get(name)) == part for kind in _KINDS)


def _fitting(modules: Iterable[torch.nn.Module], kind: type | None) -> list[torch.nn.Module]:
    return [module for module in modules if kind is None or type(module) is kind]


def _module_below(known: dict[Path, torch.nn.Module], traced: TracedModule) -> torch.nn.Module | None:
    """Returns the module below the innermost known one of its path; ``None`` if the path leads elsewhere."""
    for length in range(len(traced.path), 0, -1):
        module = known.get(traced.path[:length])
        if module is None:
            continue
        for name in traced.path[length:]:
            module = None if module is None else module._modules.get(name)
        return module if type(module) is traced.kind else None
    return None


def _module_that_calls(callers: Sequence[Entry], compiled: Line) -> torch.nn.Module | None:
    """Returns the innermost module on a stack, if its call leads to the function."""
    module, lines = None, list[Line]()
    for entry in callers:
        if isinstance(entry, torch.nn.Module):
            module, lines = entry, []
        elif isinstance(entry, Line):
            lines.append(entry)
    first = next((line for line in lines if line.is_in_function_of(compiled) or not is_of_torch(line.file)), None)
    return module if first is not None and first.is_in_function_of(compiled) else None


def arguments_of(frame: FrameType | None, compiled: Line) -> list[tuple[str, torch.nn.Module]]:
    """Returns the modules among the variables of the compiled function, which this thread runs."""
    name = plain_name(compiled.function)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == compiled.file and plain_name(code.co_name) == name:
            found = [(f"L['{variable}']", value) for variable, value in frame.f_locals.items()]
            return [(variable, value) for variable, value in found if issubclass(type(value), torch.nn.Module)]
        frame = frame.f_back
    return []
