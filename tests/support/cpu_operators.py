"""Every operator that PyTorch lists for the CPU, and the ways to call it. Does not use torchnan."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any
from unittest import SkipTest

import torch
from torch.testing._internal import common_methods_invocations as lists
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from tests.support.call_observation import Call

FOREACH = [
    op for name in dir(lists) if name.startswith("foreach_") and name.endswith("_db") for op in getattr(lists, name)
]
OPS = {op.full_name: op for op in [*lists.op_db, *FOREACH]}
LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def dtypes(op: Any) -> list[torch.dtype]:
    """float32 first, the others in a fixed order."""
    return sorted(op.supported_dtypes("cpu"), key=lambda dtype: (dtype != torch.float32, str(dtype)))


def two_dtypes(op: Any) -> list[torch.dtype]:
    """float32 and one more, another one with every operator."""
    known = dtypes(op)
    return [*known[:1], *known[1:][list(OPS).index(op.full_name) % max(len(known) - 1, 1) :][:1]]


def samples(op: Any, dtype: torch.dtype, most: int | None = None) -> Iterator[Any]:
    """PyTorch's own samples, ``most`` of each layout: dense, then the sparse ones that the operator supports."""
    has_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.default_generator.manual_seed(0)
    dense = _first(most, op.sample_inputs("cpu", dtype, requires_grad=has_gradient))
    yield from dense
    for layout in filter(op.supports_sparse_layout, LAYOUTS):
        try:
            yield from _first(most, op.sample_inputs_sparse(layout, "cpu", dtype, requires_grad=has_gradient))
        except (NotImplementedError, SkipTest):  # there are none
            yield from _made_sparse(dense, layout)


def _first(most: int | None, given: Iterator[Any]) -> list[Any]:
    """Closes leftover generators: they would switch gradients off and on when they are collected, during a run."""
    taken = list(islice(given, most))
    if isinstance(given, Generator):
        given.close()
    return taken


# Facets that differ between any two runs, with detection or without, by dtype and variant, with the reason.
VARYING = {
    **dict.fromkeys(
        ("empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"),
        (r".*", r".*\.bits|memory.*", "uninitialized memory"),
    ),
    **dict.fromkeys(
        ("linalg.matrix_rank", "linalg.matrix_rank.hermitian"),
        (r".*, growing out=", r".*\.bits|memory.*", "the rank of a matrix without elements is never written"),
    ),
    **dict.fromkeys(
        ("linalg.lstsq", "linalg.lstsq.grad_oriented"),
        (r".*", r".*\.bits|memory.*", "LAPACK's gelsy depends on how its memory is aligned"),
    ),
    "nn.functional.conv2d": (
        r"torch\.float16, .*",
        r"(outputs|second gradients).*\.bits",
        "oneDNN reads uninitialized memory",
    ),
    "nn.functional.conv_transpose3d": (
        r"torch\.b?float16, .*",
        r"second gradients.*\.bits",
        "oneDNN reads uninitialized memory",
    ),
}


def varies(op: Any, dtype: torch.dtype, variant: str, facet: str) -> bool:
    calls, facets, _ = VARYING.get(op.full_name, ("", "", ""))
    return bool(re.fullmatch(calls, f"{dtype}, {variant}") and re.fullmatch(facets, facet))


def _made_sparse(dense: list[Any], layout: torch.layout) -> Iterator[Any]:
    block = {"blocksize": (1, 1)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    for sample in dense:
        x = sample.input
        if isinstance(x, torch.Tensor) and x.dim() == 2:
            with contextlib.suppress(RuntimeError):  # no such tensor of this dtype
                sparse = x.detach().to_sparse(layout=layout, **block).requires_grad_(x.requires_grad)
                yield SampleInput(sparse, args=sample.args, kwargs=sample.kwargs)
                return


def variants(op: Any, sample: Any) -> Iterator[tuple[str, Call]]:
    """The ways to call an operator on a sample."""
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    yield "plain", Call(op.op, args, kwargs)
    if op.inplace_variant is not None:
        yield "in place", Call(_on_a_clone(op.inplace_variant), args, kwargs)
    if op.method_variant is not None:
        yield "method", Call(op.method_variant, args, kwargs)
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if all(x.layout == torch.strided for x in tensors):
        yield "with gaps", _relaid(op, sample, noncontiguous_like)
        if any(x.dim() > 1 for x in tensors):
            yield "transposed", _relaid(op, sample, _transposed)
        if op.supports_out:
            yield from _into_given_memory(op, sample)


def _on_a_clone(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(first: Any, *rest: Any, **kwargs: Any) -> Any:
        return function(tree_map(torch.clone, first), *rest, **kwargs)

    return call


def _relaid(op: Any, sample: Any, relay: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    other = sample.transform(lambda x: relay(x) if isinstance(x, torch.Tensor) else x)
    return Call(op.op, (other.input, *other.args), other.kwargs)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    """The same values, dense, in the other order."""
    return x.detach().mT.contiguous().mT.requires_grad_(x.requires_grad) if x.dim() > 1 else x


def _into_given_memory(op: Any, sample: Any) -> Iterator[tuple[str, Call]]:
    """out= of the right size with gaps, and out= that has to grow."""
    bare = sample.transform(lambda x: x.detach() if isinstance(x, torch.Tensor) else x)
    args = (bare.input, *bare.args)
    torch.default_generator.manual_seed(0)
    try:
        made = op.op(*args, **bare.kwargs)
    except Exception:  # noqa: BLE001 - the plain variant shows it
        return
    if not all(isinstance(x, torch.Tensor) for x in tree_leaves(made)):
        return
    for name, prepare in (("out=", _with_gaps), ("growing out=", _to_be_grown)):
        yield name, Call(op.op, args, {**bare.kwargs, "out": tree_map(prepare, made)})


def _with_gaps(made: torch.Tensor) -> torch.Tensor:
    return torch.zeros((*made.shape, 2), dtype=made.dtype)[..., 1]


def _to_be_grown(made: torch.Tensor) -> torch.Tensor:
    return torch.zeros(0, dtype=made.dtype)
