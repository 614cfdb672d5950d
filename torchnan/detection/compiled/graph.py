"""The graph that Dynamo traced, kept for a replay, and its interpreter."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchnan.detection.compiled import functions, random_numbers
from torchnan.detection.compiled.stack import Entry, Line, call_under, joined, traced_lines

Modules = dict[str, weakref.ref[torch.nn.Module]]  # by their key in nn_module_stack

_KEPT_META = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "steal_arg")


def copy_graph(module: fx.GraphModule, keep: tuple[str, ...] = ()) -> fx.GraphModule:
    """Copies a graph; parameters are shared. Inductor changes the graph that it is given.

    Args:
        module: the graph.
        keep: what of the nodes' ``meta`` to keep besides the user's stack and modules. Fake tensors are left out.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for node, copy in copies.items():
        copy.meta = {key: node.meta[key] for key in (*_KEPT_META, *keep) if key in node.meta}
    copied = fx.GraphModule(module, graph)
    for name, child in module._modules.items():
        if isinstance(child, fx.GraphModule):
            copied._modules[name] = copy_graph(child, keep)
    return copied


def tensors_of(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Returns the parameters and buffers of a graph by name: a compiled optimizer has its state there."""
    parameters, buffers = module.named_parameters, module.named_buffers
    return {**dict(parameters(remove_duplicate=False)), **dict(buffers(remove_duplicate=False))}


def has_collectives(module: fx.GraphModule) -> bool:
    """Whether running a graph waits for other ranks: a replay on one rank alone would wait for ever."""
    graphs = (m.graph for m in module.modules() if isinstance(m, fx.GraphModule))
    return any("c10d" in str(node.target) or _is_distributed(node.target) for graph in graphs for node in graph.nodes)


def _is_distributed(target: Any) -> bool:
    return str(getattr(target, "__module__", "")).startswith("torch.distributed")


def with_tensors(module: fx.GraphModule, tensors: dict[str, torch.Tensor]) -> fx.GraphModule:
    """Returns a copy of the graph that has these tensors in place of its own."""
    made = copy_graph(module)
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owner = made.get_submodule(path)
        owner._parameters.pop(leaf, None)
        owner._buffers.pop(leaf, None)
        owner.register_buffer(leaf, tensor)
    return made


def run(module: fx.GraphModule, *inputs: Any) -> Any:
    """Runs a graph, letting go of each value after its last use; an error keeps the text that it was raised with."""
    interpreter = fx.Interpreter(module)
    interpreter.extra_traceback = False
    return interpreter.run(*inputs)


def as_list(results: Any) -> list[Any]:
    """Returns what a graph returned as a list: it may be one value, or several in a list or tuple."""
    return list(results) if isinstance(results, list | tuple) else [results]


def framed(
    module: fx.GraphModule, callers: list[Entry], modules: Modules, outside: Sequence[Line] = ()
) -> fx.GraphModule:
    """Changes a graph so that each of its operations runs on the stack of the user's program, whoever runs the graph.

    Args:
        module: the graph, with the bodies of its higher-order operators.
        callers: the stack on which the region was called, outermost first.
        modules: those that nodes were traced in, by their key in ``nn_module_stack``.
        outside: lines that lead to where the graph is called, which are not on its stack: it runs in a backward pass.
    """
    backward = set()
    for node in module.graph.nodes:
        if node.op == "call_method":
            node.op, node.target = "call_function", _method(node.target)
        if node.op != "call_function":
            continue
        bodies = _bodies(module, node)
        if functions.is_function(node):
            backward.add(bodies[1])
            framed(bodies[1], [], {}, traced_lines(node))
            node.target = functions.applied(node, bodies, run)
        elif bodies and not _computes_itself(node):
            continue
        if node.target in random_numbers.OPERATORS:
            node.target = _drawn(node.target)
        else:
            node.target = _framed(stack_of(node, callers, modules, outside), node.target)
    for child in module.children():
        if isinstance(child, fx.GraphModule) and child not in backward:
            framed(child, callers, modules, outside)
    module.forward = functools.partial(run, module)
    return module


def _method(name: str) -> Callable[..., Any]:
    def call_method(owner: Any, *args: Any, **options: Any) -> Any:
        return getattr(owner, name)(*args, **options)

    return call_method


def _drawn(operator: Any) -> Callable[..., Any]:
    def draw(*args: Any) -> Any:
        return random_numbers.draw(operator, *args)

    return draw


def _framed(stack: list[Entry], target: Any) -> Callable[..., Any]:
    def call_framed(*args: Any, **options: Any) -> Any:
        return call_under(stack, functools.partial(target, *args, **options))

    return call_framed


def _bodies(module: fx.GraphModule, node: fx.Node) -> list[fx.GraphModule]:
    """Returns the graphs that a higher-order operator is given: operations in them have the whole stack themselves."""
    given = (getattr(module, str(n.target), None) for n in node.all_input_nodes if n.op == "get_attr")
    return [body for body in given if isinstance(body, fx.GraphModule)]


def _computes_itself(node: fx.Node) -> bool:
    """Whether it is a higher-order operator with operations of its own around its bodies."""
    return str(node.target).startswith("flex_attention")


def stack_of(node: fx.Node, callers: list[Entry], modules: Modules, outside: Sequence[Line] = ()) -> list[Entry]:
    """Returns the stack of a node's operation, as it would be in a program that is not compiled; outermost first."""
    traced = traced_lines(node)
    if outside and traced[: len(outside)] == list(outside):
        traced = traced[len(outside) :]
    keys = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    alive = (modules[key]() for key in keys if key in modules)
    joint = joined(callers, traced)
    length = len(joint) - len(traced)
    return [*joint[:length], *(module for module in alive if module is not None), *joint[length:]]
