"""Statistics of gradients: one scan, and simple arithmetic with one row for each tensor."""

from __future__ import annotations

import math

import pytest
import torch

from torchnan.training.guard.step.gradients import measure

INF, NAN = math.inf, math.nan


def named(*rows: list[float], dtype: torch.dtype = torch.float64) -> list[tuple[str, torch.Tensor]]:
    return [(f"p{i}", torch.tensor(row, dtype=dtype)) for i, row in enumerate(rows)]


def test_nothing_has_no_norm():
    assert measure([]).norm == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_norm_and_magnitude_are_those_of_all_elements(dtype):
    tensors = named([3.0, -4.0], [12.0], [0.0], dtype=dtype)
    stats = measure(tensors)
    assert (stats.norm, stats.max_abs, stats.nonfinite, stats.sharded) == (13.0, 12.0, (), False)


@pytest.mark.parametrize(
    ("rows", "norm", "max_abs", "nonfinite"),
    [
        (([1.0], [INF]), INF, INF, ("p1",)),
        (([1.0, NAN], [2.0]), NAN, NAN, ("p0",)),
        (([-INF], [2.0], [NAN]), NAN, NAN, ("p0", "p2")),
        (([NAN], [INF]), NAN, NAN, ("p0", "p1")),
    ],
)
def test_a_nan_outweighs_an_inf(rows, norm, max_abs, nonfinite):
    stats = measure(named(*rows))
    assert [repr(stats.norm), repr(stats.max_abs), stats.nonfinite] == [repr(norm), repr(max_abs), nonfinite]


def test_the_squares_of_large_norms_do_not_overflow_in_the_norm():
    assert measure(named([3e200], [4e200])).norm == pytest.approx(5e200)


def test_every_rank_holds_its_share_of_the_squares():
    """Without the tensors that are not finite, whose rank is known by then."""
    assert measure(named([3.0, 4.0], [NAN], [2.0, 0.0]), ranks=4).squares == (25.0 + 4.0) / 4
