"""Tests the bound rules: compares their claims with the actual results."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import torchnan
from tests.support.testing_extension import _testing

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True)
class Claim:
    """One result of one operation: its bound, and the truth."""

    op: str
    output: int
    bound: float
    most: float
    limit: float
    nonnegative: bool
    least: float

    @property
    def says_something(self) -> bool:
        return self.limit > 0 and self.bound <= self.limit

    @property
    def holds(self) -> bool:
        if self.nonnegative and self.most < float("inf") and self.least < 0:
            return False
        return not self.says_something or self.most <= self.bound

    @property
    def tightness(self) -> float:
        return self.most / self.bound if self.says_something and self.bound > 0 else 0.0


@contextlib.contextmanager
def collecting(claims: list[Claim]) -> Iterator[Any]:
    """Bounds every operation inside by its rule, then scans it; the claims go to the list."""
    _testing.enable_bound_audit(True)
    try:
        with torchnan.detect(action="log", rescan_every=1) as watch:
            yield watch
            claims += [Claim(*claim) for claim in _testing.drain_bound_audit()]
    finally:
        _testing.enable_bound_audit(False)


def known(values: Any) -> Any:
    """Copies whose bounds are known exactly, because detection has observed how they were made."""

    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.layout != torch.strided:
            return x
        return x.detach().clone().requires_grad_(x.requires_grad)

    return tree_map(copy, values)


# -- values that tempt a rule to be too tight


def _bits(shape: tuple[int, ...], dtype: torch.dtype, random_: random.Random) -> torch.Tensor:
    """Finite numbers of any exponent."""
    width = torch.finfo(dtype).bits
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    generator = torch.Generator().manual_seed(random_.randrange(2**31))
    raw = torch.randint(-(2 ** (width - 1)), 2 ** (width - 1) - 1, shape, dtype=torch.int64, generator=generator)
    values = raw.to(integer).view(dtype)
    return torch.where(torch.isfinite(values), values, torch.zeros_like(values))


def _scaled(scale: Callable[[torch.dtype], float]) -> Callable[[torch.Tensor, random.Random], torch.Tensor]:
    return lambda x, _: (
        (torch.randn(x.shape, dtype=torch.float64) * scale(x.dtype))
        .clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max)
        .to(x.dtype)
    )


def _constant(value: Callable[[torch.dtype], float]) -> Callable[[torch.Tensor, random.Random], torch.Tensor]:
    return lambda x, _: torch.full(x.shape, value(x.dtype), dtype=x.dtype)


VALUES: dict[str, Callable[[torch.Tensor, random.Random], torch.Tensor]] = {
    "huge": _scaled(lambda dtype: torch.finfo(dtype).max / 16),
    "root of huge": _scaled(lambda dtype: torch.finfo(dtype).max ** 0.5 / 4),
    "fourth root of huge": _scaled(lambda dtype: torch.finfo(dtype).max ** 0.25),
    "tiny": _scaled(lambda dtype: torch.finfo(dtype).tiny),
    "subnormal": _scaled(lambda dtype: torch.finfo(dtype).smallest_normal / 64),
    "zeros": _constant(lambda dtype: 0.0),
    "ones": _constant(lambda dtype: 1.0),
    "all the same and large": _constant(lambda dtype: min(1e4, torch.finfo(dtype).max / 64)),
    "nearly the same and large": lambda x, _: (1e4 + torch.randn(x.shape)).to(x.dtype),
    "any bits": lambda x, random_: _bits(x.shape, x.dtype, random_),
    "of all sizes": lambda x, random_: (
        (torch.randn(x.shape, dtype=torch.float64) * 10.0 ** torch.randint(-20, 15, x.shape).double())
        .clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max)
        .to(x.dtype)
    ),
}


def with_values(values: Any, kind: str, random_: random.Random) -> Any:
    """The same arguments with other numbers in their floating-point tensors."""

    def replace(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.layout != torch.strided:
            return x
        return VALUES[kind](x, random_).requires_grad_(x.requires_grad)

    return tree_map(replace, values)


def run(op: Callable[..., Any], args: Any, kwargs: Any, kind: str | None, random_: random.Random) -> None:
    """Runs `op` and its backward pass; an operator may refuse what it is given."""
    if kind is not None:
        args, kwargs = with_values((args, kwargs), kind, random_)
    args, kwargs = known((args, kwargs))
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = [
            out for out in tree_leaves(op(*args, **kwargs)) if isinstance(out, torch.Tensor) and out.requires_grad
        ]
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
        gradients = [torch.ones_like(out) for out in outputs]
        if kind is not None:
            gradients = known(with_values(gradients, kind, random_))
        if outputs and inputs:
            torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)
