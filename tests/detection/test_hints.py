"""The cause in a sentence: given if a rule fits the statistics, and never made up."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

import pytest
import torch
import torch.nn.functional as F

import torchnan
from tests.support.nonfinite_catalogue import FAMILIES, INF, NAN, gradient, half, t
from torchnan._load import _C
from torchnan.detection import initial_weights


class Log(torch.autograd.Function):
    """Whose backward pass is not that of a logarithm."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad - 1)


DATA = t(1, -INF)  # made without detection

HINTS = {
    "a function with the name of another": (
        lambda: gradient(Log.apply, t(3.0)),
        "other holds zeros: x/0 is inf, once",
    ),
    "masked row": (
        lambda: torch.zeros(2, 2).masked_fill(torch.eye(2).cumsum(0) > 0, -INF).softmax(-1),
        "the row of self at [1,0] is -inf everywhere: softmax of a fully masked row is 0/0",
    ),
    "x/0": (lambda: t(1, 2, 3) / t(0, 0, 1), "other holds zeros: x/0 is inf, 2 times"),
    "0/0": (lambda: t(0, 1) / t(0, 1), "other holds zeros; in one place the dividend is 0 too: 0/0 is NaN"),
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
    "cast of a negative number to half": (
        lambda: t(-70000, 1).half(),
        "the lowest value, -70000, is beyond -65504, the lowest that float16 can hold",
    ),
    "sum of masks": (
        lambda: half(-40000, -1) + half(-40000, 2),
        "the result is beyond 65504, the largest that float16 can hold (self down to -40000, other down to -40000)",
    ),
    "half product": (
        lambda: half(300, 2) * half(300, 2),
        "the result is beyond 65504, the largest that float16 can hold (self up to 300, other up to 300)",
    ),
    "variance of one": (
        lambda: torch.ones(3, 1).var(1),
        "the variance of a single element of self: the unbiased estimate divides by n - 1 = 0",
    ),
    "variance with nothing left": (
        lambda: t(1, 2).var(correction=2),
        "the variance of 2 elements of self with correction 2: it divides by 0",
    ),
    "overflowing mean": (
        lambda: t(3e38, 3e38).mean(),
        "the result, or a value on the way to it, is beyond 3.40282e+38, the largest that float32 can hold (self up to "
        "3e+38)",
    ),
    "a quotient by zero beside one that overflows": (
        lambda: t(1e38, 1) / t(1e-10, 0),
        "other holds zeros: x/0 is inf, once",
    ),
    "a slope that overflows beside other signs": (
        lambda: gradient(lambda x: x / t(1e-30, -1, 0.5) * 1e30, torch.zeros(3)),
        "self up to 1e+30 divided by other as small as 1e-30 is beyond 3.40282e+38, the largest that float32 can hold",
    ),
    "a masked row after one that is not": (
        lambda: torch.zeros(2, 2).masked_fill(t(0, 1, 1, 1).view(2, 2) > 0, -INF).log_softmax(-1),
        "a row of self is -inf everywhere: softmax of a fully masked row is 0/0",
    ),
    "values of a row that are too far apart": (
        lambda: t(3e38, -3e38).log_softmax(0),
        "self from -3e+38 to 3e+38: their difference is beyond 3.40282e+38, the largest that float32 can hold",
    ),
    "a power in place": (
        lambda: t(0, 4).pow_(-0.5),
        "self held zeros, or values too small: their power -0.5 is beyond 3.40282e+38, the largest that float32 can "
        "hold",
    ),
    "a divisor too small for the dtype": (lambda: t(0.0) / 1e-60, "other, 1e-60, is 0 in float32: 0/0 is NaN"),
    "y1 near zero": (lambda: torch.special.bessel_y1(t(1e-40)), ""),
    "an overflow beside a zero and an infinity": (lambda: t(3e38, 0, 1) * t(10, 1, INF), ""),
    "an overflow beside infinities": (lambda: t(3e38, INF, 1) + t(3e38, 1, INF), ""),
    "norm at zero": (
        lambda: gradient(lambda x: x.square().sum().sqrt(), t(0, 0)),
        "the slope of sqrt at 0 is infinite: 1 / (2 sqrt(0)), as in a norm of zeros; mul in PowBackward0 made NaN of "
        "it (tests/detection/test_hints.py:LINE)",
    ),
    "a branch that was not taken": (
        lambda: gradient(lambda x: torch.where(x > 0, x.log(), 0.0), t(0, 1)),
        "the slope of log at 0 is infinite: 1 / 0; where the gradient is 0 too, 0/0 is NaN",
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
    "a singular value": (
        lambda: gradient(lambda x: torch.linalg.svd(x, full_matrices=False)[0], torch.eye(3, 2) * t(1, 0)),
        "a singular value is 0: the gradient of the vectors divides by it",
    ),
    "singular values": (
        lambda: gradient(lambda x: torch.linalg.svd(x)[0], torch.eye(2)),
        "two singular values are equal: the gradient of the vectors divides by their difference",
    ),
    "all targets ignored": (
        lambda: F.cross_entropy(torch.zeros(4, 2), torch.full((4,), -100)),
        "all 4 targets are ignore_index (-100): a mean over nothing is 0/0",
    ),
    "no targets": (
        lambda: F.nll_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)),
        "there are no targets: a mean over nothing is 0/0",
    ),
    "a number for a divisor": (lambda: t(1, 2) / 0, "other is 0: x/0 is inf, 2 times"),
    "integers": (
        lambda: torch.tensor(0) / torch.tensor(0),
        "other is 0, and so is the dividend: 0/0 is NaN",
    ),
    "x/0 and 0/0": (lambda: t(1, 0) / 0, "other is 0: x/0 is inf, and NaN where self is 0 too"),
    "a divisor that is too small": (
        lambda: t(1e20) / t(1e-30),
        "self up to 1e+20 divided by other as small as 1e-30 is beyond 3.40282e+38, the largest that float32 can hold",
    ),
    "a negative dividend of a divisor that is too small": (
        lambda: t(-1e20, 1) / t(1e-30, 1),
        "self down to -1e+20 divided by other as small as 1e-30 is beyond 3.40282e+38, the largest that float32 can "
        "hold",
    ),
    "a last digit outside": (
        lambda: torch.acos(t(1.0000001)),
        "self holds values outside [-1, 1] (up to 1.0000001): acos of them is NaN",
    ),
    "negative base": (
        lambda: t(-1, 4).pow(0.5),
        "self holds negative values (down to -1): a negative base to the power 0.5 is NaN",
    ),
    "negative power of zero": (lambda: t(0, 4).pow(-0.5), "self holds zeros: 0 to the power -0.5 is inf"),
    "overflowing power": (lambda: t(1e20) ** 2, "1e+20 to the power 2 is more than float32 can hold"),
    "reciprocal": (lambda: t(0, 2).reciprocal(), "self holds zeros: 1/0 is inf"),
    "addcdiv": (
        lambda: torch.addcdiv(t(1), t(1), t(0)),
        "tensor2 holds zeros: tensor1 / tensor2 is inf, once",
    ),
    "addcdiv in a list": (
        lambda: torch._foreach_addcdiv([t(1), t(2)], [t(1), t(0)], [t(1), t(0)]),
        "tensor2[1] is 0, and so is tensor1[1]: 0/0 is NaN",
    ),
    "mean of nothing": (lambda: t(1, 2)[t(1, 2) > 5].mean(), "self has no elements: a mean over nothing is 0/0"),
    "loss of nothing": (
        lambda: F.mse_loss(torch.empty(0), torch.empty(0)),
        "self has no elements: a mean over nothing is 0/0",
    ),
    "overflowing product": (
        lambda: torch.full((2, 2), 1e22) @ torch.full((2, 2), 2e21),
        "the result, or a value on the way to it, is beyond 3.40282e+38, the largest that float32 can hold (self up to "
        "1e+22, mat2 up to 2e+21)",
    ),
    "overflowing norm": (
        lambda: t(2e30, 1e30).norm(),
        "the result, or a value on the way to it, is beyond 3.40282e+38, the largest that float32 can hold (self up to "
        "2e+30, ord 2)",
    ),
    "singular": (
        lambda: torch.linalg.inv_ex(torch.zeros(2, 2))[0],
        "A is singular, or so nearly that its inverse is beyond float32",
    ),
    "a solution that is too large": (
        lambda: torch.linalg.solve_ex(torch.eye(2) * 1e-3, torch.full((2, 1), 3e38))[0],
        "A is singular, or the solution is beyond float32",
    ),
    "the second argument is the matrix": (
        lambda: torch.cholesky_solve(torch.ones(2, 1), torch.zeros(2, 2)),
        "input2 is singular, or the solution is beyond float32",
    ),
    "an infinity in a product of matrices": (
        lambda: t(INF, 1).view(1, 2) @ t(-1, -1).view(2, 1) + t(INF).view(1, 1) @ t(1.0).view(1, 1),
        "self and other hold infinities: inf - inf is NaN",
    ),
    "atanh": (lambda: torch.atanh(t(1.0)), "self holds 1 or -1: atanh of them is infinite"),
    "logit": (lambda: torch.logit(t(1.0)), "self holds 0 or 1: logit of them is infinite"),
    "lgamma": (lambda: torch.lgamma(t(0.0)), "self holds zeros or negative integers, the poles of lgamma"),
    "lgamma of a large number beside a negative one": (
        lambda: torch.lgamma(t(-2.5, 3e38)),
        "lgamma of 3e+38 is more than float32 can hold",
    ),
    "digamma": (lambda: torch.digamma(t(0.0)), "self holds zeros, a pole of digamma"),
    "digamma near zero": (lambda: torch.digamma(t(5, 1e-39)), "digamma of 1e-39 is more than float32 can hold"),
    "digamma of a negative integer": (
        lambda: torch.digamma(t(-2, 5)),
        "self holds negative integers, the poles of digamma",
    ),
    "log1p": (lambda: torch.log1p(t(-1.0)), "self holds -1: log1p(-1) is -inf"),
    "remainder": (lambda: t(1).remainder(0), "other is 0: remainder by 0 is NaN, once"),
    "in place": (lambda: t(1, 0).log_(), "self held zeros: log(0) is -inf"),
    "alignment": (
        lambda: F.ctc_loss(torch.zeros(3, 1, 5).log_softmax(-1), torch.tensor([[1, 2, 3, 4]]), (3,), (4,)),
        "an input is too short for its target, counting a blank between equal neighbours: no alignment exists",
    ),
    "infinite times zero": (
        lambda: torch.zeros(2) * t(-INF, -INF),
        "other holds infinities where self is zero: 0 * inf is NaN",
    ),
    "infinite data times zero": (
        lambda: torch.zeros(2) * DATA,
        "other holds infinities where self is zero: 0 * inf is NaN; the -inf in other came with the data",
    ),
    "inf - inf": (lambda: t(INF) - t(INF), "self and other hold infinities: inf - inf is NaN"),
    "eps of zero": (
        lambda: F.layer_norm(torch.ones(1, 2), (2,), eps=0.0),
        "eps is 0, and the variance of a row of input is 0: 0/0 is NaN",
    ),
    "bad row": (
        lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0], [NAN, NAN]]) @ torch.ones(2, 1),
        "row 2 of 3 is the first with a non-finite value (2 in all)",
    ),
}


@pytest.mark.breadth(5)
@pytest.mark.parametrize("name", HINTS)
def test_the_hint_states_the_measured_values(name):
    run, hint = HINTS[name]
    with torchnan.detect(action="log") as watch:
        held = run()
    assert watch.first is not None
    assert (watch.first.hint or "") == hint.replace("LINE", str(run.__code__.co_firstlineno))
    del held


class Prior(torch.nn.Module):
    def __init__(self, kept):
        super().__init__()
        scores = t(1, -INF)
        self.scores = (
            torch.nn.Parameter(scores, requires_grad=False) if kept == "parameter" else torch.nn.Buffer(scores)
        )

    def forward(self, x):
        return x * self.scores


@pytest.mark.parametrize("kept", ["buffer", "parameter"])
def test_a_mask_of_a_module_is_named(kept):
    prior = Prior(kept)
    with torchnan.detect(action="log") as watch:
        prior(torch.zeros(2)).sum().item()
    assert watch.first is not None
    assert (watch.first.origin, watch.first.op) == ("op", "aten::mul")
    assert watch.first.hint.endswith(f"; the -inf in other is in the {kept} scores")


def test_unwritten_memory_is_called_that():
    with torchnan.detect(action="log") as watch:
        fresh = torch.empty(4)
        ctypes.memset(fresh.data_ptr(), 0xFF, 16)  # like an allocator that reuses pages
        held = fresh * 2
    assert watch.first is not None
    assert watch.first.origin == "uninit"
    assert watch.first.hint == "nothing has written to this memory: empty() does not initialize it"
    del held


def test_no_rule_no_hint():
    with torchnan.detect(action="log") as watch:
        held = torch.special.chebyshev_polynomial_t(t(100.0), t(50.0))
    assert watch.first is not None
    assert not watch.first.hint
    del held


def test_weights_that_have_diverged_are_named_with_their_first_size():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e4)
    size = f"{model[1].weight.abs().max().item():g}"
    x = torch.randn(16, 4)
    with torchnan.detect(action="log") as watch:
        for _ in range(12):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    hints = [finding.hint or "" for finding in watch.findings]
    assert any(f"; mat2 has grown from {size} at step 1" in hint for hint in hints), hints


def test_weights_that_have_not_grown_are_not_blamed():
    weight = torch.nn.Parameter(torch.full((2, 2), 1e30))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    with torchnan.detect(action="log") as watch:
        (torch.ones(2, 2) @ weight).mean().backward()
        optimizer.step()
        held = torch.full((2, 2), 1e30) @ weight
    assert watch.first is not None
    assert "at step" not in watch.first.hint
    del held


def test_an_inf_in_a_parameter_is_reported_with_the_operation_that_makes_the_nan():
    weight = torch.nn.Parameter(t(1, -INF))
    with torchnan.detect(action="log") as watch:
        scores = torch.zeros(2) * weight
        scores.softmax(0).sum().item()
    line = sys._getframe().f_lineno - 2
    assert watch.first is not None
    assert (watch.first.origin, watch.first.kind) == ("parameter", "inf")
    assert watch.first.hint == f"mul made NaN of it ({os.path.relpath(__file__)}:{line})"


def test_an_inf_in_a_parameter_that_stays_one_has_no_such_operation():
    weight = torch.nn.Parameter(t(1, -INF))
    with torchnan.detect(action="log") as watch:
        (torch.zeros(2) + weight).sum().item()
    assert watch.first is not None
    assert not watch.first.hint


def test_an_infinite_learning_rate_is_named():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=INF)
    with torchnan.detect(action="log") as watch:
        weight.sum().backward()
        optimizer.step()
    assert watch.first is not None
    assert (watch.first.op, watch.first.hint) == ("aten::add_", "the learning rate is inf, in parameter group 0")
    assert watch.first.inputs[0].name == "alpha"


@pytest.mark.parametrize("make", [lambda: torch.full((2,), -INF), lambda: torch.ones(2) * -INF])
def test_infinity_from_a_constant_is_not_an_overflow(make):
    weight = torch.nn.Parameter(torch.ones(2))
    with torchnan.detect(action="log") as watch:
        mask = make()
        (weight + mask).sum().backward()
    assert watch.first is not None
    assert (watch.first.op, watch.first.inputs) == ("aten::add", ())
    assert watch.first.hint.startswith("it computed with the infinities of a constant from ")


def test_weights_are_read_once_for_each_optimizer():
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchnan.detect():
        for _ in range(3):
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
    assert initial_weights.find(_C.storage_of(model.weight))[1] == 1
    del optimizer
    gc.collect()
    assert initial_weights.find(_C.storage_of(model.weight)) is None


# Operators of the catalogue without a hint, and why.
WITHOUT_HINT: dict[str, str] = {}


@pytest.mark.breadth(40)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:Sparse CSR")
@pytest.mark.parametrize("maker", [maker for makers in FAMILIES.values() for maker in makers], ids=str)
def test_every_operator_of_the_catalogue_has_a_hint_or_a_reason(maker):
    with torchnan.detect(action="log") as watch:
        held = maker.run()
    assert watch.first is not None
    assert bool(watch.first.hint) != ((maker.node or maker.op) in WITHOUT_HINT), watch.first
    del held


def test_no_hint_is_advice_to_train_more_timidly():
    assert not any("learning rate" in hint for _, hint in HINTS.values())
