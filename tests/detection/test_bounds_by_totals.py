"""A mean of squares, their sum or a norm, which are small and scanned, bound a large tensor that is not scanned."""

from __future__ import annotations

import random

import pytest
import torch

import torchnan
from tests.support.bound_samples import Claim, collecting

TOTALS = {
    "RMSNorm": lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:]),
    "mean of pow": lambda x: x.pow(2).mean(-1),
    "mean of products": lambda x: (x * x).mean(0),
    "mean of all": lambda x: x.square().mean(),
    "sum of pow": lambda x: x.pow(2).sum(-1, keepdim=True),
    "sum of all": lambda x: (x * x).sum(),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "norm of rows": lambda x: torch.nn.functional.normalize(x, dim=-1),
    "norms of a list": lambda x: torch._foreach_norm([x, x[:1]]),
}

VALUES = {
    "usual": lambda *shape: torch.randn(*shape),
    "one among zeros": lambda *shape: torch.zeros(*shape).index_fill_(0, torch.tensor([3]), 1e10),
    "squares at the edge of the range": lambda *shape: torch.randn(*shape) * 1e17,
    "squares that are flushed to zero": lambda *shape: torch.full(shape, 1e-23),
    "squares at the edge of it": lambda *shape: torch.full(shape, 1.1e-19),
    "subnormal": lambda *shape: torch.randn(*shape) * 1e-42,
    "wide": lambda *shape: 10.0 ** torch.empty(*shape).uniform_(-40, 18),
}


def with_a_loose_bound(values: torch.Tensor) -> torch.Tensor:
    """The values in memory whose bound is 1e30, because it existed before they were written beside each other."""
    x = torch.full_like(values, 1e30)
    for row, value in zip(x, values, strict=True):
        row.copy_(value)
    return x


def bound_of(x: torch.Tensor) -> Claim:
    """The known bound of a tensor: a copy has the same."""
    claims: list[Claim] = []
    with collecting(claims):
        x.clone()
    return claims[-1]


@pytest.mark.breadth(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", TOTALS)
def test_no_value_is_larger_than_its_bound(name, values, dtype):
    torch.manual_seed(0)
    claims: list[Claim] = []
    with collecting(claims):
        x = with_a_loose_bound(VALUES[values](96, 64).to(dtype))
        TOTALS[name](x)
        x.clone()
    copied = claims[-1]
    assert copied.op == "aten::clone"
    assert copied.holds
    assert copied.bound < 1e26
    assert [claim for claim in claims if not claim.holds] == []


def test_the_bound_is_reached_by_one_value_among_zeros():
    claims: list[Claim] = []
    with collecting(claims):
        x = with_a_loose_bound(torch.eye(96, 64).mul(torch.arange(96)[:, None] == 5) * 7.0)
        (x * x).sum()
        x.clone()
    assert 7 <= claims[-1].bound < 7.001
    assert claims[-1].holds


PARTS = {
    "sum of a slice": lambda squares: squares[1:].sum(),
    "mean of a slice": lambda squares: squares[1:].mean(-1),
    "sums of columns": lambda squares: squares[:, 1:].sum(0),
    "of the transpose": lambda squares: squares.t()[1:].sum(),
    "a slice repeated": lambda squares: squares[1:2].expand(90, 64).mean(),
    "overlapping windows": lambda squares: squares[1:].unfold(0, 48, 47).sum(),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_total_of_a_part_bounds_nothing(name):
    claims: list[Claim] = []
    with collecting(claims):
        x = with_a_loose_bound(1 + 1e15 * torch.eye(96, 64) * (torch.arange(64) == 0))
        PARTS[name](x * x)
        x.clone()
    assert claims[-1].most == pytest.approx(1e15)
    assert claims[-1].holds


def test_an_outlier_outside_of_the_loss_is_found_where_it_overflows():
    watch = torchnan.detect(action="log", rescan_every=0)
    with watch:
        error = torch.ones(64, 512) * 1.0
        error[:, :64] += 1e5
        (error * error)[:, 64:].mean()
        half = error.half()
    assert not torch.isfinite(half).all()
    assert [finding.op for finding in watch.findings] == ["aten::_to_copy"]


def disturbed(seed: int) -> None:
    """Squares, their totals, and the operations between them."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    x, y = with_a_loose_bound(torch.randn(24, 24)), with_a_loose_bound(torch.randn(24, 24))
    squares = x * x
    steps = [
        lambda: (x * x, x.square(), x.pow(2), y.pow(2), x * y, x.pow(3))[r.randrange(6)],
        lambda: squares,
    ]
    disturbances = [
        lambda: x.mul_(10.0 ** r.uniform(-3, 6)),
        lambda: x.copy_(torch.randn(24, 24) * 10.0 ** r.uniform(-9, 9)),
        lambda: x.data.fill_(10.0 ** r.uniform(-9, 9)),
        lambda: x[3].fill_(10.0 ** r.uniform(-9, 9)),
        lambda: squares.mul_(1e-3),
        lambda: squares.data.zero_(),
        lambda: squares.copy_(y),
        lambda: torch.mul(x, x, out=squares),
        lambda: x.t().add_(1e3),
        lambda: x.set_(torch.full((24, 24), 1e8)),
        lambda: x.detach().numpy().fill(1e7),
        lambda: x.square_(),
        lambda: torch.rand(24, 24),
    ]
    totals = [lambda s: s.sum(), lambda s: s.mean(), lambda s: s.mean(-1), lambda s: s.sum(0), lambda s: s[:5].sum()]
    for _ in range(30):
        taken = r.choice(steps)()
        if r.random() < 0.3:
            r.choice(disturbances)()
        r.choice(totals)(taken)
        del taken
        if r.random() < 0.3:
            r.choice(disturbances)()
        (x.clone(), y.clone(), x + y)


@pytest.mark.breadth(2)
@pytest.mark.parametrize("block", range(10))
def test_calls_in_between_make_no_bound_too_small(block):
    claims: list[Claim] = []
    with collecting(claims):
        for seed in range(20 * block, 20 * block + 20):
            disturbed(seed)
    assert sum(claim.bound < 1e20 for claim in claims if claim.op == "aten::clone") > 100
    assert [claim for claim in claims if not claim.holds] == []


def test_a_stack_of_rms_norms_is_not_read():
    """Each layer multiplies the bounds by about 10^7; a norm resets them."""
    torch.manual_seed(0)
    width, depth = 256, 12
    norms = torch.nn.ModuleList(torch.nn.RMSNorm(width, eps=1e-6) for _ in range(depth))
    layers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
        for _ in range(depth)
    )
    x = torch.randn(64, width)
    with torchnan.detect(rescan_every=0) as watch, torch.no_grad():
        for _ in range(3):
            before = watch.stats()["bytes"]
            h = x * 1.0
            for norm, layer in zip(norms, layers, strict=True):
                h = h + layer(norm(h))
            read = watch.stats()["bytes"] - before
    small = 5 * depth * 64 * 4  # the means and what is made of them
    assert read <= small + x.nbytes
