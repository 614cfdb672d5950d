"""The graph of a backward pass traced by compiled autograd: its nodes and their origins."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import fx

from torchnan._load import _C
from torchnan.detection import graph_code
from torchnan.detection.compiled import torch_internals
from torchnan.detection.compiled.graph import BACKWARD_NODE
from torchnan.detection.compiled.stack import BackwardNode
from torchnan.detection.introspection import engine_code

_NODE_CALL = re.compile(r"(\S+) \(NodeCall (\d+)\)\s*$")  # in a stack trace, in place of a source line


def is_pass(file: str) -> bool:
    """Whether the code that Dynamo traces at present is the graph of a backward pass.

    The program may compile other graphs: an exported program, or any other module of ``torch.fx``.

    Args:
        file: of the code.
    """
    return file.startswith(graph_code.FILE) and torch_internals.runs_compiled_autograd()


def keep_modules(copy: fx.GraphModule, file: str) -> None:
    """Restores the modules of the forward pass in the nodes of a graph: they are lost where Dynamo traces it again.

    Args:
        copy: the graph that Dynamo has traced.
        file: of the code that it has traced, which is that of the graph of compiled autograd.
    """
    known = [module for module in _C.instances_of(fx.GraphModule) if _file_of(module) == file]
    stacks = {node.name: node.meta.get("fwd_nn_module_stack") for module in known for node in module.graph.nodes}
    for node in copy.graph.nodes:
        if stacks.get(node.name):
            node.meta["fwd_nn_module_stack"] = stacks[node.name]


def _file_of(module: fx.GraphModule) -> str:
    return str(getattr(getattr(type(module).forward, "__code__", None), "co_filename", ""))


def roots_of_pass() -> list[Any]:
    """Returns the first nodes of the backward pass that this thread runs."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not engine_code():
        frame = frame.f_back
    outputs = () if frame is None else frame.f_locals["t_outputs"]
    return [output.grad_fn if isinstance(output, torch.Tensor) else output.node for output in outputs]


def nodes_of_pass(roots: Sequence[Any]) -> list[Any]:
    """Returns all nodes of a backward pass."""
    found = dict[Any, None]()
    pending = [root for root in roots if root is not None]
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending.extend(_next(node))
    return list(found)


def attach_nodes(graph: fx.Graph, roots: Sequence[Any]) -> None:
    """Tells the operations of a graph which node of the backward pass they belong to."""
    traced = {node: found for node in graph.nodes if (found := _NODE_CALL.search(node.stack_trace or ""))}
    if not traced:
        return
    order = _order_of_calls(roots)
    is_this_pass = all(
        int(found[2]) < len(order) and found[1].startswith(order[int(found[2])].name())
        for found in traced.values()
        if int(found[2]) > 0
    )
    for node, found in traced.items():
        number = int(found[2])
        node.target = getattr(node.target, "fn", node.target)  # without a Python frame, like a call from the engine
        node.meta[BACKWARD_NODE] = BackwardNode(found[1], order[number] if is_this_pass and number > 0 else None)


def _order_of_calls(roots: Sequence[Any]) -> list[Any]:
    """Returns the nodes of a backward pass in the order in which compiled autograd traces them; the first, whose edges
    are the roots, is ``None``."""
    waiting = Counter[Any]()  # the edges of each node that have not been followed
    pending = [[root for root in roots if root is not None]]
    while pending:
        for node in pending.pop():
            waiting[node] += 1
            if waiting[node] == 1:
                pending.append(_next(node))
    order: list[Any] = [None]
    ready: list[Any] = []
    edges = [root for root in roots if root is not None]
    while True:
        for node in edges:
            waiting[node] -= 1
            if waiting[node] == 0:
                ready.append(node)
        if not ready:
            return order
        order.append(ready.pop())
        edges = _next(order[-1])


def _next(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]
