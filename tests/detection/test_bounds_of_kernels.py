"""Bounds hold for the kernel that runs: settings, algorithms and layouts choose among several."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torchnan
from tests.fuzz.settings import settings
from tests.support.bound_samples import Claim, collecting, known

LARGEST = torch.finfo(torch.float32).max  # infinite in bfloat16
TINY = 1e-36


def large(*shape: int) -> torch.Tensor:
    return known(torch.full(shape, LARGEST))


def tiny(*shape: int) -> torch.Tensor:
    return known(torch.full(shape, TINY))


def zeros(*shape: int) -> torch.Tensor:
    return known(torch.zeros(shape))


def lstm(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    weights = (tiny(256, 32), tiny(256, 64), zeros(256), zeros(256))
    with torch.no_grad():
        return torch.lstm(x, (h, zeros(1, 8, 64)), weights, True, 1, 0.0, False, False, False)[0]


def gradients_of_convolution(g: torch.Tensor, x: torch.Tensor) -> None:
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    torch.ops.aten.convolution_backward(g, x, tiny(16, 16, 3, 3), [16], *how)


def gradients_of_attention(g: torch.Tensor, x: torch.Tensor) -> None:
    name = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k = known(torch.ones(2, 4, 128, 64)), known(torch.ones(2, 4, 128, 64))
    y, lse = name(q, k, x, 0.0, False)
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, x, y, lse, 0.0, False)


# Each operator that multiplies, with a factor that is infinite in bfloat16, and a result that is far from the limit.
PRODUCTS: dict[str, tuple[str, Callable[[], object]]] = {
    "mm": ("mm", lambda: large(64, 128) @ tiny(128, 128)),
    "mm, second": ("mm", lambda: tiny(64, 128) @ large(128, 128)),
    "addmm": ("addmm", lambda: torch.addmm(zeros(128), large(64, 128), tiny(128, 128))),
    "bmm": ("bmm", lambda: torch.bmm(large(4, 64, 64), tiny(4, 64, 64))),
    "baddbmm": ("baddbmm", lambda: torch.baddbmm(zeros(4, 64, 64), large(4, 64, 64), tiny(4, 64, 64))),
    "addbmm": ("addbmm", lambda: torch.addbmm(zeros(128, 128), large(4, 128, 64), tiny(4, 64, 128))),
    "mv": ("mv", lambda: large(8192, 32) @ tiny(32)),
    "addr": ("addr", lambda: torch.addr(zeros(128, 128), large(128), tiny(128))),
    "convolution": ("convolution", lambda: torch.conv2d(large(4, 16, 24, 24), tiny(16, 16, 3, 3), padding=1)),
    "transposed": ("convolution", lambda: torch.conv_transpose2d(large(4, 16, 24, 24), tiny(16, 16, 3, 3))),
    "gradients of a convolution": (
        "convolution_backward",
        lambda: gradients_of_convolution(large(4, 16, 24, 24), tiny(4, 16, 24, 24)),
    ),
    "values of attention": (
        "_scaled_dot_product_flash_attention_for_cpu",
        lambda: F.scaled_dot_product_attention(zeros(2, 4, 128, 64), zeros(2, 4, 128, 64), large(2, 4, 128, 64)),
    ),
    "queries of attention": (
        "_scaled_dot_product_flash_attention_for_cpu",
        lambda: F.scaled_dot_product_attention(large(2, 4, 128, 64), tiny(2, 4, 128, 64), zeros(2, 4, 128, 64)),
    ),
    "gradients of attention": (
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        lambda: gradients_of_attention(large(2, 4, 128, 64), tiny(2, 4, 128, 64)),
    ),
    "input of an LSTM": ("mkldnn_rnn_layer", lambda: lstm(large(20, 8, 32), zeros(1, 8, 64))),
    "state of an LSTM": ("mkldnn_rnn_layer", lambda: lstm(zeros(20, 8, 32), large(1, 8, 64))),
}


def claims_of(op: str, run: Callable[[], object]) -> list[Claim]:
    claims: list[Claim] = []
    with collecting(claims):
        run()
    return [claim for claim in claims if claim.op == f"aten::{op}"]


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_factor_beyond_the_narrowest_type_proves_nothing(name):
    """Fails when dot() does not convert its factors: where a setting lets the processor round them to bfloat16, they
    are infinite, whatever the result is in float32."""
    op, run = PRODUCTS[name]
    claims = claims_of(op, run)
    assert claims
    assert not any(claim.says_something and claim.bound > 0 and claim.output == 0 for claim in claims), claims


def test_factors_of_float64_are_not_rounded():
    def run() -> None:
        _ = known(torch.full((64, 128), 1e200, dtype=torch.float64)) @ known(torch.ones(128, 128, dtype=torch.float64))

    (claim,) = claims_of("mm", run)
    assert claim.says_something


def test_an_average_of_rounded_values_may_exceed_them():
    """Fails when the bound of attention leaves out that kernels may round its weights and values."""
    value = 1 + 2**-8 + 2**-9  # 1.0078125 in bfloat16
    v = torch.full((2, 4, 128, 64), value)

    def run() -> None:
        F.scaled_dot_product_attention(zeros(2, 4, 128, 64), zeros(2, 4, 128, 64), known(v))

    claim, *_ = claims_of("_scaled_dot_product_flash_attention_for_cpu", run)
    assert claim.bound >= v.bfloat16().max().item()
    assert claim.bound < 1.05 * value


# -- transforms of fast algorithms


def nnpack() -> contextlib.AbstractContextManager[None]:
    """Lets PyTorch choose NNPACK for convolutions of float32."""
    return torch.backends.mkldnn.flags(enabled=False)


def findings_of_convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **options: object):
    with nnpack(), torchnan.detect(action="log", when="origin", **options) as watch:
        y = torch.conv2d(known(x), known(weight), None if bias is None else known(bias), padding=1)
        z = torch.tanh(y)
    assert watch.stats()["internal_errors"] == 0
    del y, z
    return [(finding.op, finding.kind) for finding in watch.findings]


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("scale", [1e30, 3e36, 3e37, 3e38])
def test_a_transform_that_overflows_is_found(kernel, scale):
    """Fails when the rule bounds only the result: the transform of the input overflows, whatever the weight is."""
    torch.manual_seed(0)
    x = torch.randn(32, 16, 24, 24).clamp(-1, 1) * scale
    weight = torch.randn(16, 16, kernel, kernel) * 1e-17
    exact = findings_of_convolution(x, weight, None, rescan_every=1)
    assert findings_of_convolution(x, weight, None, rescan_every=0) == exact


@pytest.mark.parametrize("scale", [1e30, 5e37])
def test_a_bias_may_overflow_in_a_transform(scale):
    x, weight = torch.ones(32, 16, 24, 24), torch.ones(16, 16, 3, 3)
    bias = torch.full((16,), scale)
    exact = findings_of_convolution(x, weight, bias, rescan_every=1)
    assert findings_of_convolution(x, weight, bias, rescan_every=0) == exact
    claims: list[Claim] = []
    with nnpack(), collecting(claims):
        torch.conv2d(known(x), known(weight), known(bias), padding=1)
    assert [claim.says_something for claim in claims if claim.op == "aten::convolution"] == [scale == 1e30]


# -- roundings that do not cancel


def nearly_constant(shape: tuple[int, ...], dtype: torch.dtype, scale: float) -> torch.Tensor:
    """Numbers that differ in their last bits: each rounding of a running sum goes the same way for long."""
    step = torch.finfo(dtype).eps * scale
    return (torch.full(shape, scale, dtype=torch.float64) + step * (torch.arange(shape[-1]) % 3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1 + 2**-7, 1000.0])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_normalisations_of_nearly_equal_numbers_stay_within_their_bounds(dtype, scale, layout):
    """Every running sum of a normalisation, with as many terms as it has in a large image."""
    x = nearly_constant((4, 2, 300, 257), dtype, scale)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    g = nearly_constant(x.shape, dtype, 1.0)
    claims: list[Claim] = []
    with collecting(claims):
        x, g, w, b = known(x), known(g), torch.ones(2, dtype=dtype), torch.zeros(2, dtype=dtype)
        y, mean, r = torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
        torch.ops.aten.native_batch_norm_backward(g, x, w, None, None, mean, r, True, 1e-5, [True] * 3)
        y, mean, r = torch.native_group_norm(x, w, b, 4, 2, 300 * 257, 1, 1e-5)
        torch.ops.aten.native_group_norm_backward(g, x, mean, r, w, 4, 2, 300 * 257, 1, [True] * 3)
        rows, of_rows = known(x.reshape(8, -1)), known(g.reshape(8, -1))
        sizes = rows.shape[1:]
        w, b = torch.ones(sizes, dtype=dtype), torch.zeros(sizes, dtype=dtype)
        y, mean, r = torch.native_layer_norm(rows, sizes, w, b, 1e-5)
        torch.ops.aten.native_layer_norm_backward(of_rows, rows, sizes, mean, r, w, b, [True] * 3)
        del y
    assert len({claim.op for claim in claims if "norm" in claim.op}) == 6
    assert [claim for claim in claims if not claim.holds] == []


# -- numbers that a kernel flushes


@pytest.mark.parametrize("cut", [torch.relu, lambda x: x.clamp(0, 1)], ids=["relu", "clamp"])
def test_a_negative_subnormal_number_that_a_kernel_keeps_is_found_by_its_root(cut):
    """While they are flushed, vectors of bfloat16 compare it as 0, and keep it."""
    x = torch.full((5000,), -1e-40, dtype=torch.bfloat16)
    with torchnan.detect(action="log", when="origin", rescan_every=0) as watch:
        copied = x.clone()
        with settings(flush_denormal=True):
            y = cut(copied)
        root = y.sqrt()
    assert root.isnan().any()
    assert [finding.op for finding in watch.findings] == ["aten::sqrt"]
