"""No bound rule gives too small a bound: PyTorch's own samples, and values that tempt a rule."""

from __future__ import annotations

import collections
import functools
import itertools
import random
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import torchnan
from tests.support.bound_samples import DTYPES, VALUES, Claim, collecting, run
from tests.support.testing_extension import _testing

# -- the rules, by PyTorch's own samples and by values that tempt them


def without_underscore(op: str) -> str:
    return op.removeprefix("aten::").removeprefix("_foreach_").rstrip("_") or op


# Operators with another name in PyTorch's list.
OTHER_NAMES = [
    "matmul",
    "nn.functional.linear",
    "nn.functional.bilinear",
    "einsum",
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv_transpose2d",
    "nn.functional.conv3d",
    "nn.functional.layer_norm",
    "nn.functional.group_norm",
    "nn.functional.batch_norm",
    "native_batch_norm",
    "nn.functional.instance_norm",
    "nn.functional.scaled_dot_product_attention",
    "softmax",
    "log_softmax",
    "nn.functional.cross_entropy",
    "nn.functional.nll_loss",
    "nn.functional.mse_loss",
    "nn.functional.embedding",
    "nn.functional.embedding_bag",
    "nn.functional.dropout",
    "nn.functional.pad",
    "nn.functional.interpolate",
    "nn.functional.max_pool2d",
    "nn.functional.max_pool3d",
    "nn.functional.avg_pool2d",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.unfold",
    "to",
    "float",
    "half",
    "bfloat16",
    "double",
    "contiguous",
    "expand_copy",
    "unfold",
    "unfold_copy",
    "__getitem__",
    "square",
    "__radd__",
    "__rsub__",
    "__rmul__",
    "true_divide",
    "norm",
    "var_mean",
    "std_mean",
]


def has_a_rule_of_its_own(op) -> bool:
    rules = _testing.operators_with_rules()
    name = without_underscore(op.name.split(".")[-1].removeprefix("_foreach_"))
    return op.name in OTHER_NAMES or name in rules


def claims_about(op, samples: int) -> list[Claim]:
    """The claims of rules while `op` runs forward and backward, on its first samples in every dtype, with every kind of
    value."""
    claims: list[Claim] = []
    with collecting(claims):
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
            taken = zip(op.sample_inputs("cpu", dtype, requires_grad=differentiable), range(samples), strict=False)
            for sample, _ in taken:
                for kind in [None, *VALUES]:
                    torch.manual_seed(0)
                    run(op, (sample.input, *sample.args), sample.kwargs, kind, random.Random(0))
    return claims


OPS = {op.full_name: op for op in op_db if has_a_rule_of_its_own(op)}


@functools.cache
def first_claims(name: str) -> list[Claim]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return claims_about(OPS[name], samples=1)


@pytest.mark.breadth(20)
@pytest.mark.parametrize("name", OPS)
def test_no_rule_claims_too_little(name):
    assert [claim for claim in first_claims(name) if not claim.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize("op", op_db, ids=[op.full_name for op in op_db])
def test_no_rule_claims_too_little_on_more_samples(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [claim for claim in claims_about(op, samples=4) if not claim.holds] == []


# Operators without a sample in PyTorch's list.
def _attention(q, k, v):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]


def _group_norm(x, weight, bias):
    return torch.nn.functional.group_norm(x, 2, weight, bias)


def _batch_norm(x, weight, bias):
    mean, var = torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype)
    evaluated = torch.nn.functional.batch_norm(x, mean, var, weight, bias, training=False)
    return evaluated, torch.nn.functional.batch_norm(x, mean, var, weight, bias, training=True)


def _adam(p, g, v):
    p, v = p.detach(), v.detach().square()
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    return p.lerp_(g, 0.1), v.sqrt(), v.sqrt() / 0.3 + 1e-8


def _lists(x, y, z):
    made = [torch._foreach_add([x], [y], alpha=2), torch._foreach_mul([x, y], [y, z]), torch._foreach_mul([x], 0.5)]
    made += [torch._foreach_lerp([x], [y], 0.25), torch._foreach_addcmul([x], [y], [z], 3.0)]
    return made, torch._foreach_div([x, y], [2.0, -4.0]), torch._foreach_sqrt(torch._foreach_abs([x]))


def _mask(x):
    mask = torch.full(x.shape[-2:], float("-inf"), dtype=x.dtype).triu(1)
    return torch.ops.aten._safe_softmax(x + mask, -1)


def _pools(x):
    pools = torch.nn.functional
    return pools.max_pool2d(x, 3, 1), pools.avg_pool2d(x, 2, 1), pools.adaptive_avg_pool2d(x, 3)


def _pieces(x):
    filled = [torch.rand_like(x), torch.ones_like(x), torch.zeros_like(x), x.new_full((3, 4), 7.0), x.new_ones(5)]
    return (
        filled,
        x.clone().uniform_(-3, 2),
        x.clone().bernoulli_(0.5),
        torch.nn.functional.dropout(x, 0.3),
        x.clone().fill_(2),
    )


def _norms(x):
    return torch._foreach_norm([x])


def _copies(x):
    aten = torch.ops.aten
    copies = [torch.roll(x, 1), aten.select_copy(x, 0, 1), aten.slice_copy(x, 0, 1, 2), aten.detach_copy(x)]
    copies += [aten.lift(x), aten.lift_fresh_copy(x), aten._reshape_copy(x, [-1]), torch.rand(40, 40, dtype=x.dtype)]
    return copies, x.select(0, 1), x[1:], x[:, ::2], x[torch.tensor([3])], torch.tensor([5.0], dtype=x.dtype)


def _hardtanh(x):
    return torch.nn.functional.hardtanh(x, -1e4, 2e4)


def _images(x):
    functional = torch.nn.functional
    scores, target = x.log_softmax(1), torch.zeros((x.shape[0], *x.shape[2:]), dtype=torch.long)
    made = [functional.nll_loss(scores, target), functional.unfold(x, 2), functional.interpolate(x, scale_factor=2)]
    return made, functional.pad(x, (1, 1, 1, 1), "reflect"), torch.native_dropout(x, 0.25, True)


def _activation(c, x, y):
    return torch._addmm_activation(c[0], x, y.t())


def _powers(x):
    """Of exponents that bfloat16 or float16 cannot represent."""
    return [x.abs().pow(p) for p in (0.9, 1.1, 1e-3, 1e-9)], x.pow(3), x.pow(2)


def _lstm(x, h, c, w_x, w_h, b_x, b_h):
    return torch.lstm(x, (h, c), (w_x, w_h, b_x, b_h), True, 1, 0.0, True, False, False)


def _saturated_lstm(x, h, c, w_x, w_h, b_x, b_h):
    """Every gate and cell at one, as long as weights are positive."""
    ones = (torch.ones_like(w_x), torch.ones_like(w_h), torch.ones_like(b_x) * 90, torch.ones_like(b_h))
    return torch.lstm(x.clamp(-1, 1), (h.clamp(-1, 1), c), ones, True, 1, 0.0, False, False, False)


def _bags(weight):
    """One bag, of one row."""
    bags, functional = torch.zeros(1, 3, dtype=torch.long), torch.nn.functional
    made = [functional.embedding_bag(bags, weight, mode=mode) for mode in ("sum", "mean", "max")]
    return made, functional.embedding_bag(bags, weight.detach(), mode="sum")


SHAPES = {
    _attention: [(2, 2, 5, 8)] * 3,
    _group_norm: [(3, 4, 5, 6), (4,), (4,)],
    _batch_norm: [(3, 4, 5, 6), (4,), (4,)],
    _adam: [(40, 50)] * 3,
    _lists: [(9, 11)] * 3,
    _mask: [(2, 7, 7)],
    _pools: [(2, 3, 8, 8)],
    _pieces: [(17, 33)],
    _copies: [(40, 50)],
    _hardtanh: [(40, 50)],
    _images: [(2, 3, 5, 6)],
    _activation: [(9, 9), (9, 5), (9, 5)],
    _powers: [(40, 50)],
    _lstm: [(6, 3, 5), (1, 3, 7), (1, 3, 7), (28, 5), (28, 7), (28,), (28,)],
    _saturated_lstm: [(6, 3, 5), (1, 3, 7), (1, 3, 7), (28, 5), (28, 7), (28,), (28,)],
    _bags: [(10, 6)],
    _norms: [(9, 9)],
}


@functools.cache
def claims_of_program(program, dtype) -> list[Claim]:
    claims: list[Claim] = []
    with collecting(claims):
        for kind, seed in itertools.product(VALUES, range(4)):
            torch.manual_seed(seed)
            inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in SHAPES[program]]
            run(program, inputs, {}, kind, random.Random(seed))
    return claims


@pytest.mark.breadth(13)
@pytest.mark.parametrize("program", SHAPES, ids=lambda program: program.__name__.strip("_"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_rule_gives_too_small_a_bound_in_a_generated_program(program, dtype):
    claims = claims_of_program(program, dtype)
    assert claims
    assert [claim for claim in claims if not claim.holds] == []


# Rules whose claim is loose on purpose, or zero: halving them goes unnoticed.
LOOSE = {
    "zero": "claims zero",
    "zeros": "claims zero",
    "zeros_like": "claims zero",
    "new_zeros": "claims zero",
    "sigmoid_backward": "of any y, not only of a sigmoid's",
    "hardsigmoid_backward": "a slope of a sixth",
    "_log_softmax_backward_data": "as if all of the gradient came together",
    "_adaptive_avg_pool2d_backward": "as if every window held the element",
    "avg_pool2d_backward": "as if no window shared its gradient out",
    "max_pool3d_with_indices_backward": "as if every window chose the element",
}


@pytest.mark.breadth(0)  # of all operators
def test_a_rule_cut_in_half_would_be_noticed():
    """Somewhere in the tests above a result comes within a factor of two of what its rule claims."""
    programs = (claims_of_program(*pair) for pair in itertools.product(SHAPES, DTYPES))
    tightest: dict[str, float] = collections.defaultdict(float)
    for claim in itertools.chain(*map(first_claims, OPS), *programs):
        name = without_underscore(claim.op)
        tightest[name] = max(tightest[name], claim.tightness)
    loose = {name for name in _testing.operators_with_rules() if tightest[name] < 0.5 and "::" not in name}
    assert loose == set(LOOSE)


def test_the_comparison_notices_a_rule_that_claims_too_little():
    library = torch.library.Library("torchnan_tight", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    torchnan.register_bound("torchnan_tight::double", lambda x: 1.9 * x.most)
    claims: list[Claim] = []
    with collecting(claims):
        torch.ops.torchnan_tight.double(torch.ones(5000))
    assert [claim.holds for claim in claims if claim.op == "torchnan_tight::double"] == [False]


def test_a_mask_of_the_lowest_number_leaves_a_softmax_proved():
    """The largest element is subtracted first, which may make -inf of the others, and 0 of that."""
    lowest = torch.finfo(torch.float32).min
    claims: list[Claim] = []
    with collecting(claims):
        scores = torch.randn(16, 512).masked_fill(torch.rand(16, 512) < 0.5, lowest)
        scores.softmax(-1)
        scores.log_softmax(-1)
    proved = {claim.op for claim in claims if claim.says_something}
    assert "aten::_softmax" in proved
    assert "aten::_log_softmax" not in proved
    assert [claim for claim in claims if not claim.holds] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 10.0, 3e3, 1e4, 1e15])
def test_large_scores_of_attention_prove_nothing_of_its_backward_pass(scale, dtype):
    """It computes the scores again: their rounding may be a large number, whose exponential overflows."""
    torch.manual_seed(0)
    claims: list[Claim] = []
    with collecting(claims):
        q, k = ((torch.randn(1, 2, 64, 32) * scale).to(dtype).requires_grad_() for _ in range(2))
        v = torch.randn(1, 2, 64, 32).to(dtype).requires_grad_()
        torch.nn.functional.scaled_dot_product_attention(q * 1, k * 1, v * 1, is_causal=True).mul(1e-3).sum().backward()
    backward = [claim for claim in claims if "attention" in claim.op and "backward" in claim.op]
    assert [claim for claim in backward if not claim.holds] == []
    assert all(claim.says_something for claim in backward) == (scale <= 10)


def test_elu_that_multiplies_a_mask_by_zero_is_scanned():
    watch = torchnan.detect(action="log", when="origin", rescan_every=0)
    with watch:
        torch.ops.aten.elu(torch.full((100, 100), float("-inf")) + 1, 0.0, 1.0, 0.0)
    assert [(finding.op, finding.kind) for finding in watch.findings] == [("aten::elu", "nan")]


def test_dropout_that_does_not_train_ignores_its_probability():
    claims: list[Claim] = []
    with collecting(claims):
        torch.native_dropout(torch.ones(100, 100) * 1e30, -1e3, False)
    assert [claim for claim in claims if not claim.holds] == []


def test_statistics_beside_those_of_a_layer_norm_are_not_its_own():
    aten, claims = torch.ops.aten, []
    with collecting(claims):
        x, mean, rstd = torch.randn(100, 100), torch.full((200, 1), 1e6), torch.full((200, 1), 1e3)
        out = torch.empty(100, 100)
        aten.native_layer_norm.out(x, [100], None, None, 1e-5, out0=out, out1=mean[:100], out2=rstd[:100])
        mask = [True, False, False]
        aten.native_layer_norm_backward(torch.randn(100, 100), x, [100], mean[100:], rstd[100:], None, None, mask)
    assert [claim for claim in claims if not claim.holds] == []


def claims_of(op: str, compute) -> list[Claim]:
    claims: list[Claim] = []
    with collecting(claims):
        compute()
    return [claim for claim in claims if claim.op == op]


@pytest.mark.parametrize(("terms", "is_proved"), [(60_000, True), (70_000, False)])
def test_a_log_softmax_whose_sum_overflows_float16_is_not_proved(terms, is_proved):
    """The sum of the exponentials is stored in the dtype of x."""
    (claim,) = claims_of("aten::_log_softmax", lambda: torch.zeros(2, terms, dtype=torch.float16).log_softmax(-1))
    assert claim.holds
    assert claim.says_something == is_proved


def _constant_channels(shape):
    return (1 + torch.rand(shape[1])).view(1, -1, *[1] * (len(shape) - 2)).expand(shape) * 2.0**26


def _one_that_deviates(shape):
    """By as much as the rounding of a variance hides."""
    x = torch.full(shape, 1e4 / 3)
    x.view(-1)[0] += 1e3
    return x


def _ordinary(shape):
    return torch.randn(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 8, 4, 4), (2, 16, 24, 24), (1, 8, 128, 128), (1, 4, 8, 16, 16)], ids=str)
@pytest.mark.parametrize("values", [_constant_channels, _one_that_deviates, _ordinary], ids=lambda f: f.__name__)
def test_a_group_norm_of_channels_last_is_bounded_by_its_running_sums(values, shape, dtype):
    torch.manual_seed(0)
    form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    claims: list[Claim] = []
    with collecting(claims):
        for groups in (shape[1], shape[1] // 2):
            x = values(shape).to(dtype).contiguous(memory_format=form).requires_grad_()
            weight = torch.ones(shape[1], dtype=dtype, requires_grad=True)
            y = torch.nn.functional.group_norm(x, groups, weight, torch.zeros(shape[1], dtype=dtype))
            y.backward(y.sign())
    claims = [claim for claim in claims if "group_norm" in claim.op]
    assert [claim for claim in claims if not claim.holds] == []
    assert values is not _ordinary or all(claim.says_something for claim in claims)


def test_a_group_norm_of_no_elements_is_not_proved():
    """Its deviation is not a number."""
    claims: list[Claim] = []
    with collecting(claims):
        x, weight = torch.randn(1, 8192, 0), torch.ones(8192, requires_grad=True)
        torch.nn.functional.group_norm(x, 8192, weight, torch.zeros(8192)).sum().backward()
    assert claims
    assert [claim for claim in claims if not claim.holds] == []


@pytest.mark.parametrize("dims", [2, 3])
def test_indices_of_a_max_pool_may_all_be_the_same(dims):
    shape, name = (1, 1, *[20] * dims), f"max_pool{dims}d_with_indices_backward"

    def backward():
        g, x, indices = torch.full(shape, 1e30), torch.zeros(shape), torch.zeros(shape, dtype=torch.long)
        window = ([3] * dims, [1] * dims, [1] * dims, [1] * dims)
        getattr(torch.ops.aten, name)(g, x, *window, False, indices)

    (claim,) = claims_of(f"aten::{name}", backward)
    assert claim.holds
    assert claim.says_something


def test_a_softmax_sums_to_one_along_its_own_dimension_alone():
    def backward_along_another():
        x, g = torch.zeros(5000, 4), torch.full((5000, 4), 1e30)
        x[:, 0] = 100
        torch.ops.aten._softmax_backward_data(g, x.softmax(1), 0, torch.float32)

    (claim,) = claims_of("aten::_softmax_backward_data", backward_along_another)
    assert claim.holds
    assert claim.says_something
