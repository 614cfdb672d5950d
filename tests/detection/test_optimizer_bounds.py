"""Weights after an optimizer step are proved finite by the history of its moments, and by nothing weaker."""

from __future__ import annotations

import random

import pytest
import torch

import torchnan
from tests.support.bound_samples import Claim, collecting

OPTIMIZERS = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "AdamW, foreach, amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True, amsgrad=True),
    "AdamW, other betas": lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.5, 0.9), eps=1e-6),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "RMSprop, momentum": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}

# The gradient of each step, as a factor: the more they differ, the closer a quotient comes to its bound.
GRADIENTS = {
    "usual": lambda t: 1.0,
    "growing": lambda t: 1.25**t,
    "falling": lambda t: 0.7**t,
    "huge": lambda t: 1e15,
    "one among zeros": lambda t: 1e10 * (t == 4),
    "a leap": lambda t: 1e-18 if t < 5 else 1e12,
    "squares that are flushed to zero": lambda t: 1e-25,
    "at the edge of it": lambda t: 1e-19,
}


def claims_of_steps(name: str, gradients: str, dtype: torch.dtype) -> list[Claim]:
    claims: list[Claim] = []
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(40, 40).div(20).to(dtype))
    optimizer = OPTIMIZERS[name]([p])
    with collecting(claims):
        for t in range(9):
            p.grad = torch.randn(40, 40).sign().mul(GRADIENTS[gradients](t)).to(dtype)
            optimizer.step()
    return [claim for claim in claims if "addcdiv" in claim.op]


@pytest.mark.breadth(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_step_is_larger_than_claimed(name, gradients, dtype):
    claims = claims_of_steps(name, gradients, dtype)
    assert len(claims) >= 9
    assert [claim for claim in claims if not claim.holds] == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_most_steps_are_claimed(name):
    claims = claims_of_steps(name, "usual", torch.float32)
    assert sum(claim.says_something for claim in claims) >= 6


def adam_step(m: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The quotient of one step, added to zeros."""
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    return torch.addcdiv(torch.zeros_like(m), m, v.sqrt().add_(1e-8))


def test_the_bound_of_a_quotient_is_reached():
    """With gradients that grow exactly as fast as in the worst case of the proof."""
    claims: list[Claim] = []
    with collecting(claims):
        m, v = torch.zeros(40, 40), torch.zeros(40, 40)
        for t in range(60):
            adam_step(m, v, torch.ones(40, 40) * (0.999 / 0.9) ** t)
    claims = [claim for claim in claims if "addcdiv" in claim.op]
    assert 7 < claims[-1].most <= claims[-1].bound < 7.4
    assert all(claim.holds and claim.tightness > 0.99 for claim in claims)


def test_weights_are_seldom_read():
    torch.manual_seed(0)
    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    read = []
    with torchnan.detect(rescan_every=0) as watch:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(64, 128)).square().mean().backward()
            before = watch.stats()["bytes"]
            optimizer.step()
            read.append(watch.stats()["bytes"] - before)
    assert sum(read[2:]) < model.weight.nbytes  # of ten steps, small tensors included


def disturbed(seed: int) -> None:
    """Steps in an order that occurs in no optimizer, so that histories end, or continue."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    m, v = torch.zeros(16, 16), torch.zeros(16, 16)
    g = torch.randn(16, 16)
    steps = [
        lambda: m.lerp_(g, r.uniform(0.01, 0.9)),
        lambda: v.mul_(r.uniform(0.3, 1)),
        lambda: v.addcmul_(g, g, value=r.uniform(0.001, 1)),
        lambda: g.copy_(torch.randn(16, 16) * 10.0 ** r.uniform(-30, 0)),
        lambda: adam_step(m, v, g),
        lambda: torch.addcdiv(torch.zeros(16, 16), m, v.sqrt().add_(1e-8)),
        lambda: torch.addcdiv(torch.zeros(16, 16), g, v.sqrt().add_(1e-8)),
        lambda: torch.addcdiv(torch.zeros(16, 16), m, (v.sqrt() / r.uniform(0.01, 1)).add_(1e-8)),
    ]
    disturbances = [
        lambda: m.data.fill_(1.0),
        lambda: v.data.mul_(1e-12),
        lambda: g.data.mul_(1e6),
        lambda: g.data.copy_(m),
        lambda: m.t().lerp_(g, 0.5),
        lambda: v.lerp_(g.square(), 0.1),
        lambda: v[0].zero_(),
        lambda: m.copy_(g),
        lambda: v.addcmul_(g.t(), g.t(), value=0.5),
        lambda: m.lerp_(g[:1].expand(16, 16), 0.5),
        lambda: v.div_(3, rounding_mode="floor"),
    ]
    for _ in range(40):
        r.choice(steps if r.random() < 0.85 else disturbances)()


@pytest.mark.breadth(2)
@pytest.mark.parametrize("block", range(20))
def test_a_history_that_was_disturbed_claims_nothing_wrong(block):
    claims: list[Claim] = []
    with collecting(claims):
        for seed in range(50 * block, 50 * block + 50):
            disturbed(seed)
    assert sum(claim.says_something for claim in claims if "addcdiv" in claim.op) > 100
    assert [claim for claim in claims if not claim.holds] == []


def test_a_mean_that_was_overwritten_is_noticed():
    p = torch.nn.Parameter(torch.zeros(96, 96))
    optimizer = torch.optim.AdamW([p], lr=1.0)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        for _ in range(3):
            p.grad = torch.full_like(p, 1e-12)
            optimizer.step()
        optimizer.state[p]["exp_avg"].data.fill_(1e33)
        optimizer.step()
    assert {finding.op for finding in watch.findings if finding.kind == "inf"} == {"aten::addcdiv_"}
