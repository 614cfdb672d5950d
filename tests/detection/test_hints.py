"""The cause in a sentence: said where a rule fits what was measured, and never made up."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F

import torchnan
from tests.support.nonfinite_catalogue import INF, NAN, gradient, half, t

HINTS = {
    "masked row": (
        lambda: torch.zeros(2, 2).masked_fill(torch.eye(2).cumsum(0) > 0, -INF).softmax(-1),
        "the row of self at [1,0] is -inf everywhere: softmax of a fully masked row is 0/0",
    ),
    "x/0": (lambda: t(1, 2, 3) / t(0, 0, 1), "other holds zeros: x/0 is inf, 2 times"),
    "0/0": (lambda: t(0, 1) / t(0, 1), "other holds zeros, once where the dividend is zero too: 0/0 is NaN"),
    "log of zero": (lambda: t(0, 1).log(), "self holds zeros: log(0) is -inf"),
    "log of a negative": (lambda: t(-2, 1).log(), "self holds negative values (down to -2): their logarithm is NaN"),
    "sqrt of a negative": (
        lambda: t(-2, 1).sqrt(),
        "self holds negative values (down to -2): their square root is NaN",
    ),
    "rsqrt of zero": (lambda: t(0, 1).rsqrt(), "self holds zeros: 1/sqrt(0) is inf"),
    "exp": (lambda: t(89, 1).exp(), "exp of 89 is more than float32 can hold"),
    "cast to half": (
        lambda: t(70000, 1).half(),
        "the largest value, 70000, is beyond 65504, the largest that float16 can hold",
    ),
    "half product": (
        lambda: half(300, 2) * half(300, 2),
        "the result is beyond 65504, the largest that float16 can hold (largest input 300)",
    ),
    "variance of one": (
        lambda: torch.ones(3, 1).var(1),
        "the variance of a single element of self: the unbiased estimate divides by n - 1 = 0",
    ),
    "norm at zero": (
        lambda: gradient(lambda x: x.square().sum().sqrt(), t(0, 0)),
        "the slope of sqrt at 0 is infinite: 1 / (2 sqrt(0)), as in a norm of zeros",
    ),
    "power at zero": (
        lambda: gradient(lambda x: x.pow(0.5), t(0.0)),
        "the slope of x ** p at 0 is infinite where p is less than 1",
    ),
    "acos at one": (lambda: gradient(lambda x: x.acos(), t(1.0)), "the slope of acos and asin at 1 and -1 is infinite"),
    "eigenvalues": (
        lambda: gradient(lambda x: torch.linalg.eigh(x)[1], torch.eye(2)),
        "two eigenvalues are equal: the gradient of eigenvectors divides by their difference",
    ),
    "singular values": (
        lambda: gradient(lambda x: torch.linalg.svd(x)[0], torch.eye(2)),
        "two singular values are equal: the gradient of the vectors divides by their difference",
    ),
    "bad row": (
        lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0], [NAN, NAN]]) @ torch.ones(2, 1),
        "row 2 of 3 is the first with a non-finite value (2 in all)",
    ),
}


@pytest.mark.breadth(5)
@pytest.mark.parametrize("name", HINTS)
def test_the_hint_says_what_was_measured(name):
    run, hint = HINTS[name]
    with torchnan.detect(action="log") as watch:
        held = run()
    assert watch.first is not None
    assert watch.first.hint == hint
    del held


def test_unwritten_memory_is_called_that():
    with torchnan.detect(action="log") as watch:
        fresh = torch.empty(4)
        ctypes.memset(fresh.data_ptr(), 0xFF, 16)  # as an allocator that gives used pages again
        held = fresh * 2
    assert watch.first is not None
    assert watch.first.origin == "uninit"
    assert watch.first.hint == "nothing has written to this memory: empty() does not initialize it"
    del held


@pytest.mark.parametrize(
    "run",
    [
        lambda: t(3e38) * 10,
        lambda: F.cross_entropy(torch.zeros(1, 2), torch.tensor([-100])),
        lambda: t(1e30).view(1, 1) @ t(1e30).view(1, 1),
        lambda: torch.ones(0).mean(),
    ],
)
def test_no_rule_no_hint(run):
    with torchnan.detect(action="log") as watch:
        held = run()
    assert watch.first is not None
    assert not watch.first.hint
    del held


def test_no_hint_is_advice_to_train_more_timidly():
    assert not any("learning rate" in hint for _, hint in HINTS.values())
