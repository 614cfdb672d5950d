"""A ``torch.autograd.Function`` that Dynamo traced: its node in a replay has the name of the class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchnan.detection.compiled.stack import traced_lines
from torchnan.detection.graph_code import functions_at

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
