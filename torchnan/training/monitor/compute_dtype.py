"""Infers the dtype that a model computes in, without running it."""

from __future__ import annotations

import itertools
from typing import Any

import torch

COMPUTE_DTYPES = ("float32", "float16", "bfloat16")
MAX_NODES = 20_000

_HALF = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def infer_from_loss(loss: torch.Tensor) -> str | None:
    """Returns the 16-bit dtype found in the graph of a loss, where autocast leaves it, else ``"float32"``.

    Returns ``None`` if the loss has no graph.
    """
    if loss.grad_fn is None:
        return None
    seen, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting and len(seen) < MAX_NODES:
        node: Any = waiting.pop()
        for result in node._input_metadata:
            if result.dtype in _HALF:
                return _HALF[result.dtype]
        following = {next_ for next_, _ in node.next_functions if next_ is not None} - seen
        seen |= following
        waiting += following
    return "float32"


def infer_from_parameters(model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> str | None:
    """Returns the 16-bit dtype of the parameters, or ``None``: autocast may use less than the dtype of wider ones."""
    groups = [] if optimizer is None else [group["params"] for group in optimizer.param_groups]
    parameters = itertools.chain([] if model is None else model.parameters(), *groups)
    return next((_HALF[p.dtype] for p in parameters if p.dtype in _HALF), None)
