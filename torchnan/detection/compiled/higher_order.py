"""Higher-order operators that a replay calls in its own way: a ``torch.autograd.Function`` that Dynamo traced, whose
node then has the name of the class, and regions inside a region (``torch.compiler.nested_compile_region``), which have
one graph for several calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchnan.detection.compiled.stack import Line, Modules, traced_lines
from torchnan.detection.graph_code import functions_at, module_stack

Run = Callable[..., Any]


def is_function(node: fx.Node) -> bool:
    """Whether a node calls an ``autograd.Function``."""
    return str(node.target) == "autograd_function_apply"


def is_hook(node: fx.Node) -> bool:
    """Whether a node registers a hook on a tensor, which runs in the backward pass."""
    return str(node.target) == "register_hook"


def applied(node: fx.Node, bodies: Sequence[fx.GraphModule], run: Run) -> Run:
    """Returns what a node calls that :func:`is_function`.

    Args:
        node: the node.
        bodies: the graphs of its forward and its backward function.
        run: runs one of them.
    """
    lines = [line for body in bodies for inner in body.graph.nodes for line in traced_lines(inner)]
    name = next(functions_at(lines, ("forward", "backward")), "Function")

    def apply(fwd: fx.GraphModule, bwd: fx.GraphModule, *args: Any, **options: Any) -> Any:
        saved: list[Any] = []

        def forward(ctx: Any, *args: Any) -> Any:
            output, kept = run(fwd, *args)
            saved.extend(kept)
            outputs = output if isinstance(output, tuple | list) else [output]
            ctx.mark_dirty(*(outputs[i] for i in options.get("dirty_idx", ())))
            ctx.mark_non_differentiable(*(outputs[i] for i in options.get("non_differentiable_idx", ())))
            return output

        def backward(ctx: Any, *gradients: Any) -> Any:
            return run(bwd, *gradients, *saved)

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        meta: Any = type(torch.autograd.Function)
        return meta(name, (torch.autograd.Function,), members).apply(*args)

    return apply


def is_nested_region(node: fx.Node) -> bool:
    """Whether a node calls such a region."""
    return str(node.target) == "invoke_subgraph"


def inlined(body: fx.GraphModule) -> Callable[..., Any]:
    """Returns what such a node calls in a replay: the graph itself, so that autograd sees its operations."""

    def call(_graph: Any, _identifier: Any, *operands: Any) -> Any:
        return body.forward(*operands)

    return call


def lines_of_call(node: fx.Node, body: fx.GraphModule) -> list[Line]:
    """Returns the lines that lead to the call for which the graph was traced: as many as lead to this call."""
    lines = next((found for inner in body.graph.nodes if (found := traced_lines(inner))), [])
    return lines[: len(traced_lines(node))]


def modules_in_call(node: fx.Node, body: fx.GraphModule, modules: Modules) -> Modules:
    """Returns the modules that a call runs, by the keys that those have for which the graph was traced.

    Args:
        node: the call.
        body: the graph.
        modules: those of the region around it, by their key in ``nn_module_stack``.
    """
    outside = list(module_stack(node))
    stacks = [list(module_stack(inner)) for inner in body.graph.nodes if module_stack(inner)]
    keys = {key for stack in stacks for key in stack[len(outside) :]}
    if not outside or not stacks:
        return {key: modules[key] for key in keys if key in modules}
    called, traced = modules.get(outside[-1]), modules.get(stacks[0][len(outside) - 1])
    if called is None or traced is None:
        return {}
    parts = dict(called.named_modules())
    names = {id(part): name for name, part in traced.named_modules()}
    found: dict[str, torch.nn.Module] = {}
    for key in keys & modules.keys():
        name = names.get(id(modules[key]))
        if name in parts:
            found[key] = parts[name]
    return found
