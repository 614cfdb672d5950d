"""What a model computes in: read from what it has left behind, without asking it to run."""

from __future__ import annotations

import itertools
from typing import Any

import torch

COMPUTE_DTYPES = ("float32", "float16", "bfloat16")
MAX_NODES = 20_000

_SHORT = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def infer_from_loss(loss: torch.Tensor) -> str | None:
    """By the dtypes of the results in its graph, which autocast leaves there; ``None`` if it has no graph."""
    if loss.grad_fn is None:
        return None
    seen, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting and len(seen) < MAX_NODES:
        node: Any = waiting.pop()
        for result in node._input_metadata:
            if result.dtype in _SHORT:
                return _SHORT[result.dtype]
        following = {next_ for next_, _ in node.next_functions if next_ is not None} - seen
        seen |= following
        waiting += following
    return "float32"


def infer_from_parameters(model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> str | None:
    """By the parameters, if these are of 16 bits: others may compute in less, under autocast."""
    groups = [] if optimizer is None else [group["params"] for group in optimizer.param_groups]
    parameters = itertools.chain([] if model is None else model.parameters(), *groups)
    return next((_SHORT[p.dtype] for p in parameters if p.dtype in _SHORT), None)
