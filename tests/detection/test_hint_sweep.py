"""Hints for PyTorch's own operators at poles, edges and the ends of the range: each hint is true, or absent."""

from __future__ import annotations

import pytest

from tests.support.hint_sweep import operators, sweep

SEVERAL_POLES = "it has poles at other places than zero, and of its argument only the range and the zeros are known"
ITERATION = "an iteration or a factorisation fails for more reasons than the ranges of its arguments show"
TOO_NEAR_ZERO = "its result is in range where it stands, and not a little nearer to zero: the pole is not reached"
TWO_OVERFLOWS = "a variance or sum may have overflowed, or what it is scaled by"
SERIES = "its asymptotic series leaves the range at both ends"
BINS = "it divides by the widths of bins, which are no arguments, and some of them are 0"
INF_TIMES_ZERO = "an Inf on the way meets a zero or another Inf in a recurrence"

# Operators for which some values have no hint, and why.
WITHOUT_HINT = {
    "mvlgamma": SEVERAL_POLES,
    "digamma_": SEVERAL_POLES,
    "polygamma": "the order of the derivative is not recorded",
    "special_zeta": SEVERAL_POLES,
    "_linalg_svd": ITERATION,
    "_linalg_eigh": ITERATION,
    "linalg_eig": ITERATION,
    "linalg_qr": ITERATION,
    "linalg_pinv": ITERATION,
    "linalg_cholesky_ex": ITERATION,
    "linalg_ldl_factor_ex": ITERATION,
    "linalg_ldl_solve": ITERATION,
    "geqrf": ITERATION,
    "linalg_lu": ITERATION,
    "linalg_lu_factor_ex": ITERATION,
    "linalg_lstsq": ITERATION,
    "_linalg_slogdet": ITERATION,
    "special_bessel_y1": TOO_NEAR_ZERO,
    "special_modified_bessel_k1": TOO_NEAR_ZERO,
    "special_scaled_modified_bessel_k0": TOO_NEAR_ZERO,
    "special_scaled_modified_bessel_k1": TOO_NEAR_ZERO,
    "logit_backward": TOO_NEAR_ZERO,
    "native_layer_norm": TWO_OVERFLOWS,
    "native_batch_norm": TWO_OVERFLOWS,
    "native_group_norm": TWO_OVERFLOWS,
    "_batch_norm_with_update": TWO_OVERFLOWS,
    "_native_batch_norm_legit": TWO_OVERFLOWS,
    "xlogy": "a weight is so large that a logarithm may overflow where another is infinite",
    "special_xlog1py": "a weight is so large that a logarithm may overflow where another is infinite",
    "sinc": INF_TIMES_ZERO,
    "sgn": INF_TIMES_ZERO,
    "_histogramdd_bin_edges": INF_TIMES_ZERO,
    "_histogramdd_from_bin_cts": BINS,
    "_histogramdd_from_bin_tensors": BINS,
    "histogram": BINS,
    "where": "logdet chooses a constant NaN where the determinant is negative",
    "special_airy_ai": SERIES,
    "igamma": SERIES,
    "igammac": SERIES,
    "segment_reduce": "a segment may be empty, or its product or sum may overflow",
    "_ctc_loss": "log probabilities that are none may overflow or leave no alignment",
    "_ctc_loss_backward": "log probabilities that are none may overflow or leave no alignment",
    "torch_nn::_linear_cross_entropy_batch_chunked": "a loss computed in one piece: its products are not seen",
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction": "a loss computed in one piece",
    **{
        f"special_{name}": INF_TIMES_ZERO
        for name in (
            *(f"{kind}chebyshev_polynomial_{letter}" for kind in ("", "shifted_") for letter in "tuvw"),
            "hermite_polynomial_h",
            "hermite_polynomial_he",
            "laguerre_polynomial_l",
            "legendre_polynomial_p",
        )
    },
}

# Reads out of bounds if a coordinate is 1e30, also without torchnan: the index of a bicubic neighbour overflows.
CRASH_PYTORCH = {"grid_sampler_2d", "nn.functional.grid_sample"}

SHARES = 40


@pytest.mark.breadth(1)
@pytest.mark.parametrize("share", range(SHARES))
def test_hints_about_operators_at_edges_are_true(share):
    hold_all_hints(sorted(operators())[share::SHARES], seed=0, samples=1)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_hints_about_more_samples_of_operators_are_true(share):
    names = [name for name in sorted(operators())[share::SHARES] if name not in CRASH_PYTORCH]
    hold_all_hints(names, seed=1, samples=6)


def hold_all_hints(names, **options):
    told = [one for name in names for one in sweep(name, **options)]
    assert told
    assert [one for one in told if one.wrong is not None] == []
    assert {(one.op, one.inputs) for one in told if not one.hint and one.op not in WITHOUT_HINT} == set()
