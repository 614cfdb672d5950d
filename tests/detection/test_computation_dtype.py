"""A bound refers to the dtype of the computation: numbers are rounded to it, and a wider result does not widen the
range."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import torchnan

N = 5000
HALF, BF16, DOUBLE = torch.half, torch.bfloat16, torch.float64
NAN = float("nan")


def full(value, dtype=torch.float32, *shape):
    return torch.full(shape or (N,), value, dtype=dtype)


def findings_of(program, **options):
    with torchnan.detect(action="log", **{"rescan_every": 0, **options}) as watch:
        kept = program()
    del kept
    assert watch.stats()["internal_errors"] == 0
    return [(f.kind, f.op, f.harm.kind) for f in watch.findings]


def scaled(tensors, factor):
    torch._foreach_mul_(tensors, factor)
    return tensors


BEYOND = {
    "infinite": lambda: full(0.0) * 1e39,
    "infinite for small numbers": lambda: full(1e-5) * 1e39,
    "zero as a divisor": lambda: full(1e-10) / 1e-46,
    "a tensor without dimensions": lambda: full(1e-5) * torch.tensor(1e39, dtype=DOUBLE),
    "in a list": lambda: scaled([full(0.0, HALF)], -1e5),
    "of integers": lambda: torch.ones(N, dtype=torch.int32) * 1e39,
}


@pytest.mark.parametrize("program", BEYOND.values(), ids=BEYOND)
def test_a_number_beyond_the_dtype_proves_nothing(program):
    assert findings_of(program) == findings_of(program, rescan_every=1) != []


NOT_A_NUMBER = {
    "leaky_relu": lambda: F.leaky_relu(full(-1.0), NAN),
    "elu": lambda: F.elu(full(-1.0), NAN),
    "hardtanh": lambda: F.hardtanh(full(1.0), -1.0, NAN),
    "leaky_relu_backward": lambda: torch.ops.aten.leaky_relu_backward(full(1.0), full(-1.0), NAN, False),
    "clamp": lambda: full(1.0).clamp(max=NAN),
}


@pytest.mark.parametrize("program", NOT_A_NUMBER.values(), ids=NOT_A_NUMBER)
def test_a_nan_among_the_numbers_makes_every_bound_unknown(program):
    assert findings_of(program) == findings_of(program, rescan_every=1) != []


WIDER = {
    "half into float": lambda: torch.add(full(6e4, HALF), full(6e4, HALF), out=torch.empty(N)),
    "float into double": lambda: torch.mul(full(1e30), full(1e30), out=torch.empty(N, dtype=DOUBLE)),
    "a mean in float of doubles": lambda: full(8e37, DOUBLE, N, 64).mean(1, dtype=torch.float32),
}


@pytest.mark.parametrize("program", WIDER.values(), ids=WIDER)
def test_a_wider_result_is_computed_in_the_range_of_the_arguments(program):
    assert findings_of(program) == findings_of(program, rescan_every=1) != []


def test_a_wider_result_is_rounded_as_its_arguments_are():
    """Fails when exp of bfloat16 is held to the rounding of float32: a warning about a healthy result."""
    x = (torch.rand(N) * 4).to(BF16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert findings_of(lambda: torch.exp(x, out=torch.empty(N)).sum().item(), rescan_every=1) == []


SUMS_OF_THE_SMALLEST = {
    "in bfloat16": lambda: full(4.7e-41).sum(dtype=BF16),
    "in half": lambda: full(3e-8).sum(dtype=HALF),
    "running": lambda: full(4.7e-41).cumsum(0, dtype=BF16),
    "into bfloat16": lambda: torch.sum(full(4.7e-41), 0, out=torch.empty((), dtype=BF16)),
}


@pytest.mark.parametrize("program", SUMS_OF_THE_SMALLEST.values(), ids=SUMS_OF_THE_SMALLEST)
def test_terms_that_are_rounded_up_before_they_are_added_are_within_the_bound(program):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert findings_of(program, rescan_every=1) == []


@pytest.mark.parametrize("factor", [2, 2.0, torch.tensor(2), torch.tensor(2.0)], ids=repr)
def test_products_with_a_number_of_any_type_are_proved(factor):
    with torchnan.detect(rescan_every=0) as watch:
        x = torch.ones(N) * 1.0
        before = watch.stats()["bytes"]
        for _ in range(10):
            x = x * factor / 4
        assert watch.stats()["bytes"] == before


# -- on the way to a result

ON_THE_WAY = {
    "addcmul": lambda: torch.addcmul(full(1.0), full(1e30), full(0.0), value=1e30),
    "addr": lambda: torch.addr(full(0.0, torch.float32, 100, 100), *[full(1e30, torch.float32, 100)] * 2, alpha=1e-30),
    "addmv": lambda: torch.addmv(full(0.0), full(1e30, torch.float32, N, 64), full(1e30)[:64], alpha=1e-30),
    "addmm": lambda: torch.addmm(full(0.0, BF16, 72, 72), *[full(1e30, BF16, 72, 72)] * 2, alpha=0.0),
    "lerp": lambda: torch.lerp(full(-3.3e38), full(0.8e38), 1.0),
    "avg_pool2d": lambda: F.avg_pool2d(full(8e37, torch.float32, 1, 1, 100, 100), 3, 1),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(full(8e37, torch.float32, 1, 4, 500, 500), (40, 40)),
    "attention": lambda: F.scaled_dot_product_attention(
        *[full(0.0, torch.float32, 1, 1, 1024, 16)] * 2, full(1e36, torch.float32, 1, 1, 1024, 16)
    ),
    "batch_norm": lambda: F.batch_norm(
        full(1e10, torch.float32, 2, 2, 64, 64), None, None, full(1e27)[:2], training=True
    ),
    "batch_norm in half": lambda: torch.native_batch_norm(
        full(-1.2, HALF, 72, 80), full(0.0, HALF)[:80], None, None, None, True, 0.1, 1e-12
    ),
    "group_norm": lambda: F.group_norm(full(1e10, torch.float32, 2, 2, 64, 64), 2, full(1e27)[:2], full(0.0)[:2]),
    "mse_loss_backward": lambda: torch.ops.aten.mse_loss_backward(
        full(1e-3, HALF), full(6e4, HALF), full(-6e4, HALF), 0
    ),
    "tanh_backward": lambda: torch.ops.aten.tanh_backward(full(0.0), full(1e25)),
}


@pytest.mark.parametrize("program", ON_THE_WAY.values(), ids=ON_THE_WAY)
def test_a_bound_holds_for_intermediate_values(program):
    assert findings_of(program) == findings_of(program, rescan_every=1)


@pytest.mark.parametrize(
    "mean",
    [
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.adaptive_avg_pool2d(x[None], 1),
        lambda x: F.avg_pool2d(x[None], (N, 1)),
        lambda x: x.mean(0),
    ],
)
def test_the_rounding_of_a_mean_of_equal_values_is_covered(mean):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert findings_of(lambda: mean(full(0.1, torch.float32, N, 64)), rescan_every=1) == []
