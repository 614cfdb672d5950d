"""Ways to make a NaN or an Inf from finite numbers: for each, the operation and its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn

NAN, INF = float("nan"), float("inf")


@dataclasses.dataclass(frozen=True)
class Maker:
    """A program of one line, and the truth about it.

    Attributes:
        run: the program; whatever it returns is what its user looks at.
        op: the operation at the origin, without ``aten::``.
        nan, posinf, neginf: how many the operation's output holds.
        output: which of its outputs.
        node: of the backward pass, if the origin lies there.
    """

    run: Callable[[], object]
    op: str
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    output: int = 0
    node: str | None = None

    @property
    def line(self) -> int:
        return self.run.__code__.co_firstlineno

    @property
    def kind(self) -> str:
        return "nan" if self.nan else "inf"

    def __str__(self) -> str:
        return f"{self.node or self.op}:{self.line}"


def t(*values, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def half(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float16)


def gradient(function, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradient of the sum of `function(inputs)` with respect to each input."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves).sum(), leaves, allow_unused=True)


def weight(value: float, gradient: float) -> nn.Parameter:
    parameter = nn.Parameter(t(value))
    parameter.grad = t(gradient)
    return parameter


def zero_weights(module: nn.Module, value: float = 0.0) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)
    return module


POINTWISE = [
    Maker(lambda: t(1, 0, 2).log(), "log", neginf=1),
    Maker(lambda: t(1, -1, -2).log(), "log", nan=2),
    Maker(lambda: t(0, 1).log2(), "log2", neginf=1),
    Maker(lambda: t(-4, 1).log10(), "log10", nan=1),
    Maker(lambda: t(-1, -2, 3).log1p(), "log1p", nan=1, neginf=1),
    Maker(lambda: t(-1, 4).sqrt(), "sqrt", nan=1),
    Maker(lambda: t(0, -1, 4).rsqrt(), "rsqrt", nan=1, posinf=1),
    Maker(lambda: t(0, 4).reciprocal(), "reciprocal", posinf=1),
    Maker(lambda: t(1, 89, 100).exp(), "exp", posinf=2),
    Maker(lambda: t(128, 1).exp2(), "exp2", posinf=1),
    Maker(lambda: t(89, 1).expm1(), "expm1", posinf=1),
    Maker(lambda: t(90, 1).sinh(), "sinh", posinf=1),
    Maker(lambda: t(90, -90).cosh(), "cosh", posinf=2),
    Maker(lambda: t(1.0001, 1).acos(), "acos", nan=1),
    Maker(lambda: t(-1.5, 0).asin(), "asin", nan=1),
    Maker(lambda: t(1, -1, 2).atanh(), "atanh", nan=1, posinf=1, neginf=1),
    Maker(lambda: t(0.5, 1).acosh(), "acosh", nan=1),
    Maker(lambda: t(0, 1).logit(), "logit", posinf=1, neginf=1),
    Maker(lambda: t(1, 0).erfinv(), "erfinv", posinf=1),
    Maker(lambda: t(0, -1, 2).digamma(), "digamma", nan=1, neginf=1),
    Maker(lambda: t(0, 1).lgamma(), "lgamma", posinf=1),
    Maker(lambda: t(-1, 2).pow(0.5), "pow", nan=1),
    Maker(lambda: t(0, 2).pow(-1), "pow", posinf=1),
    Maker(lambda: t(-8, 8).pow(1 / 3), "pow", nan=1),
    Maker(lambda: t(-2, 2).pow(t(0.5, 0.5)), "pow", nan=1),
    Maker(lambda: torch.pow(10, t(39, 1)), "pow", posinf=1),
    Maker(lambda: t(1, 0, -1) / 0, "div", nan=1, posinf=1, neginf=1),
    Maker(lambda: t(1, 0) / t(0, 0), "div", nan=1, posinf=1),
    Maker(lambda: t(3e38, 1) * 10, "mul", posinf=1),
    Maker(lambda: t(3e38, -3e38) + t(3e38, -3e38), "add", posinf=1, neginf=1),
    Maker(lambda: t(-3e38, 1) - 3e38, "sub", neginf=1),
    Maker(lambda: t(1, 2).fmod(0), "fmod", nan=2),
    Maker(lambda: t(1, 2).remainder(0), "remainder", nan=2),
    Maker(lambda: t(3e38, 1).square(), "pow", posinf=1),
    Maker(lambda: torch.addcdiv(t(1, 1), t(1, 0), t(0, 0)), "addcdiv", nan=1, posinf=1),
    Maker(lambda: torch.addcmul(t(1), t(1e30), t(1e30)), "addcmul", posinf=1),
    Maker(lambda: torch.hypot(t(3e38), t(3e38)), "hypot", posinf=1),
    Maker(lambda: torch.xlogy(t(1, 0), t(0, 0)), "xlogy", neginf=1),
    Maker(lambda: torch.lerp(t(-3e38), t(3e38), 2.0), "lerp", posinf=1),
    Maker(lambda: torch.special.entr(t(-1, 1)), "special_entr", neginf=1),
    Maker(lambda: torch.special.log_ndtr(t(0.0)) / t(0.0), "div", neginf=1),
    Maker(lambda: torch.float_power(t(-1.0), 0.5), "pow", nan=1),
    Maker(lambda: torch.floor_divide(t(1.0), t(0.0)), "floor_divide", posinf=1),
    Maker(lambda: torch.ldexp(t(1.0), t(200.0)), "ldexp", posinf=1),
    Maker(lambda: torch.polar(t(3e38) * 1, t(0.0)).square(), "pow", posinf=1),
    Maker(lambda: t(1 + 1j, 0, dtype=torch.complex64).reciprocal(), "reciprocal", nan=1),
    Maker(lambda: t(0, 1, dtype=torch.float64).log(), "log", neginf=1),
    Maker(lambda: t(1, 0, dtype=torch.bfloat16).log(), "log", neginf=1),
]

NARROW = [
    Maker(lambda: t(70000, 1).half(), "_to_copy", posinf=1),
    Maker(lambda: t(1e39, 1, dtype=torch.float64).float(), "_to_copy", posinf=1),
    Maker(lambda: t(3.4e38).bfloat16(), "_to_copy", posinf=1),
    Maker(lambda: torch.zeros(2, dtype=torch.float16).copy_(t(1e5, 1)), "copy_", posinf=1),
    Maker(lambda: half(300, 1).square(), "pow", posinf=1),
    Maker(lambda: half(60000, 60000).sum(), "sum", posinf=1),
    Maker(lambda: half(12, 1).exp(), "exp", posinf=1),
    Maker(lambda: half(1, 2) / 1e-8, "div", posinf=2),
    Maker(lambda: half(300, 300).view(1, 2) @ half(300, 300).view(2, 1), "mm", posinf=1),
]

REDUCTIONS = [
    Maker(lambda: torch.zeros(0).mean(), "mean", nan=1),
    Maker(lambda: torch.ones(3, 0).mean(1), "mean", nan=3),
    Maker(lambda: t(1.0).std(), "std", nan=1),
    Maker(lambda: torch.ones(4, 1).var(1), "var", nan=4),
    Maker(lambda: torch.var_mean(torch.ones(2, 1), 1), "var_mean", nan=2),
    Maker(lambda: torch.std_mean(t(1.0)), "std_mean", nan=1),
    Maker(lambda: t(3e38, 3e38).sum(), "sum", posinf=1),
    Maker(lambda: t(1e30, 1e30).prod(), "prod", posinf=1),
    Maker(lambda: t(1e30, 1e30, 1).cumprod(0), "cumprod", posinf=2),
    Maker(lambda: t(3e38, 3e38, 1).cumsum(0), "cumsum", posinf=2),
    Maker(lambda: t(2e20, 1).norm(), "linalg_vector_norm", posinf=1),
    Maker(lambda: torch.zeros(0).median(), "median", nan=1),
    Maker(lambda: torch.zeros(0).nanmean(), "div", nan=1),
    Maker(lambda: torch.cov(torch.ones(2, 1)), "div", nan=4),
    Maker(lambda: torch.corrcoef(torch.ones(2, 3)), "div", nan=4),
    Maker(lambda: torch.cdist(t(2e20).view(1, 1), t(-2e20).view(1, 1), p=3.0), "_cdist_forward", posinf=1),
    Maker(lambda: torch.dist(t(3e38), t(-3e38)), "dist", posinf=1),
    Maker(lambda: torch.trapezoid(t(3e38, 3e38)), "add", posinf=1),
]

NORMALISATION = [
    Maker(lambda: F.layer_norm(torch.zeros(1, 2), (2,), eps=0.0), "native_layer_norm", nan=2),
    Maker(lambda: F.batch_norm(t(1, 2).view(2, 1), t(0), t(-1), eps=0.5), "native_batch_norm", nan=2),
    Maker(lambda: F.group_norm(torch.ones(1, 2), 1, eps=0.0), "native_group_norm", nan=2),
    Maker(lambda: F.instance_norm(torch.full((1, 1, 2), 3e38)), "native_batch_norm", neginf=2),
    Maker(lambda: F.rms_norm(torch.zeros(1, 2), (2,), eps=0.0), "rsqrt", posinf=1),
    Maker(lambda: F.normalize(torch.zeros(1, 2), eps=0.0), "div", nan=2),
    Maker(lambda: F.cosine_similarity(torch.zeros(2), torch.zeros(2), dim=0, eps=0.0), "div", nan=2),
    Maker(lambda: F.local_response_norm(torch.zeros(1, 1, 1), 1, k=0.0), "div", nan=1),
]

ATTENTION = [
    Maker(lambda: torch.full((1, 3), -INF).softmax(-1), "_softmax", nan=3),
    Maker(lambda: torch.full((2, 3), -INF).log_softmax(-1), "_log_softmax", nan=6),
    Maker(lambda: F.softmax(t(1, 2).view(1, 2).masked_fill(t(1, 1) > 0, -INF), -1), "_softmax", nan=2),
    Maker(lambda: (torch.zeros(2) * t(-INF, -INF)).sum(), "mul", nan=2),
    Maker(lambda: t(-INF) - t(-INF), "sub", nan=1),
    Maker(lambda: torch.bmm(torch.full((1, 1, 2), 2e38), torch.ones(1, 2, 1) * 2), "bmm", posinf=1),
    Maker(lambda: torch.baddbmm(t(1).view(1, 1, 1), t(1e30).view(1, 1, 1), t(1e30).view(1, 1, 1)), "baddbmm", posinf=1),
    Maker(
        lambda: F.scaled_dot_product_attention(*[torch.full((1, 1, 1, 2), 2e19)] * 3),
        "_scaled_dot_product_flash_attention_for_cpu",
        nan=2,
    ),
    Maker(lambda: gradient(lambda x: F.gelu(x) * 3e38 * 9, t(9.0)), "mul", posinf=1),
]

LINEAR_ALGEBRA = [
    Maker(lambda: t(1e30, 1).view(1, 2) @ t(1e30, 1).view(2, 1), "mm", posinf=1),
    Maker(lambda: torch.dot(t(1e30), t(1e30)), "dot", posinf=1),
    Maker(lambda: t(1e30, 1).view(1, 2).mv(t(1e30, 1)), "mv", posinf=1),
    Maker(lambda: F.linear(t(1e30).view(1, 1), t(1e30).view(1, 1), t(0.0)), "addmm", posinf=1),
    Maker(lambda: torch.einsum("ij,jk->ik", t(1e30).view(1, 1), t(1e30).view(1, 1)), "mul", posinf=1),
    Maker(lambda: torch.outer(t(1e30), t(1e30)), "mul", posinf=1),
    Maker(lambda: torch.logdet(torch.zeros(2, 2)), "_linalg_slogdet", neginf=1, output=1),
    Maker(lambda: torch.slogdet(torch.zeros(2, 2)), "_linalg_slogdet", neginf=1, output=1),
    Maker(lambda: torch.linalg.cond(torch.zeros(2, 2)), "div", nan=1),
    Maker(lambda: torch.matrix_exp(torch.full((1, 1), 100.0)), "linalg_matrix_exp", posinf=1),
    Maker(lambda: torch.linalg.matrix_power(torch.full((1, 1), 1e30), 2), "mm", posinf=1),
    Maker(lambda: torch.cross(t(1e30, 1, 1), t(1, 1e30, 1), dim=0), "linalg_cross", posinf=1),
    Maker(
        lambda: torch.linalg.solve_triangular(torch.zeros(1, 1), torch.ones(1, 1), upper=True),
        "linalg_solve_triangular",
        posinf=1,
    ),
    Maker(lambda: F.conv1d(torch.full((1, 1, 2), 1e30), torch.full((1, 1, 1), 1e30)), "convolution", posinf=2),
    Maker(lambda: F.avg_pool1d(torch.full((1, 1, 2), 3e38), 2), "avg_pool2d", posinf=1),
]

FFT = [
    Maker(lambda: torch.fft.fft(t(3e38, 3e38)), "_fft_r2c", posinf=1),
    Maker(lambda: torch.fft.rfft(t(3e38, 3e38)), "_fft_r2c", posinf=1),
    Maker(lambda: torch.fft.ifft(t(3e38, 3e38, dtype=torch.complex64), norm="forward"), "_fft_c2c", posinf=1),
]

DISTRIBUTIONS = [
    Maker(lambda: D.Normal(t(0.0), t(0.0), validate_args=False).log_prob(t(0.0)), "log", neginf=1),
    Maker(lambda: D.Bernoulli(probs=t(0.0, 1.0)).log_prob(t(1.0, 1.0)) / t(0.0), "div", neginf=2),
    Maker(lambda: D.Exponential(t(0.0), validate_args=False).mean, "reciprocal", posinf=1),
    Maker(lambda: D.Gamma(t(0.0), t(1.0), validate_args=False).log_prob(t(0.0)), "xlogy", posinf=1),
    Maker(lambda: D.Uniform(t(1.0), t(1.0), validate_args=False).log_prob(t(1.0)), "log", neginf=1),
    Maker(lambda: D.kl_divergence(D.Normal(t(0.0), t(1.0)), D.Normal(t(0.0), t(1e-30))), "pow", posinf=1),
    Maker(lambda: D.Laplace(t(0.0), t(0.0), validate_args=False).entropy(), "log", neginf=1),
]

LOSSES = [
    Maker(lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([-100, -100])), "nll_loss_forward", nan=1),
    Maker(lambda: F.nll_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)), "nll_loss_forward", nan=1),
    Maker(lambda: F.mse_loss(torch.zeros(0), torch.zeros(0)), "mse_loss", nan=1),
    Maker(lambda: F.l1_loss(torch.zeros(0), torch.zeros(0)), "mean", nan=1),
    Maker(lambda: F.mse_loss(t(1e30), t(-1e30)), "mse_loss", posinf=1),
    Maker(lambda: F.poisson_nll_loss(t(100.0), t(1.0)), "exp", posinf=1),
    Maker(lambda: F.gaussian_nll_loss(t(1e30), t(0.0), t(1.0)), "pow", posinf=1),
    Maker(lambda: F.kl_div(t(0.0), t(-1.0), reduction="none"), "xlogy", nan=1),
    Maker(
        lambda: F.ctc_loss(torch.zeros(1, 1, 3).log_softmax(-1), torch.tensor([[1, 1]]), (1,), (2,)),
        "_ctc_loss",
        posinf=1,
    ),
    Maker(lambda: F.smooth_l1_loss(torch.zeros(0), torch.zeros(0)), "smooth_l1_loss", nan=1),
    Maker(lambda: F.huber_loss(t(3e38), t(-3e38)), "huber_loss", posinf=1),
    Maker(lambda: F.soft_margin_loss(t(-100.0), t(1.0)), "soft_margin_loss", posinf=1),
    Maker(lambda: F.binary_cross_entropy_with_logits(t(-3e38), t(2.0)), "binary_cross_entropy_with_logits", posinf=1),
]

RECURRENT = [
    Maker(lambda: zero_weights(nn.Linear(1, 1), 1e30)(t(1e30).view(1, 1)), "addmm", posinf=1),
    Maker(lambda: zero_weights(nn.RNNCell(1, 1, nonlinearity="relu"), 3e38)(t(9).view(1, 1)), "addmm", posinf=1),
    Maker(lambda: F.embedding(torch.tensor([0]), t(3e38).view(1, 1)) * 9, "mul", posinf=1),
    Maker(
        lambda: F.embedding_bag(torch.tensor([[0, 0]]), t(3e38).view(1, 1), mode="sum"),
        "_embedding_bag_forward_only",
        posinf=1,
    ),
]

SPARSE = [
    Maker(lambda: torch.sparse.mm(torch.eye(1).mul(1e30).to_sparse(), t(1e30).view(1, 1)), "_sparse_addmm", posinf=1),
    Maker(lambda: (torch.eye(2) * 3e38).to_sparse() * 10, "mul", posinf=2),
    Maker(lambda: torch.eye(2).to_sparse() / 0, "div", posinf=2),
    Maker(lambda: torch.sparse.sum((torch.ones(2) * 3e38).to_sparse()), "sum", posinf=1),
    Maker(lambda: torch.eye(1).mul(1e30).to_sparse_csr() @ t(1e30).view(1, 1), "mm", posinf=1),
    Maker(lambda: torch.nested.nested_tensor([t(1, 3e38), t(3e38)]) * 10, "mul", posinf=2),
]

IN_PLACE = [
    Maker(lambda: t(1, 0).log_(), "log_", neginf=1),
    Maker(lambda: t(1, 0).div_(0), "div_", nan=1, posinf=1),
    Maker(lambda: t(1, -1).sqrt_(), "sqrt_", nan=1),
    Maker(lambda: t(3e38).mul_(10), "mul_", posinf=1),
    Maker(lambda: t(3e38).add_(t(3e38)), "add_", posinf=1),
    Maker(lambda: t(1e30).addcmul_(t(1e30), t(1e30)), "addcmul_", posinf=1),
    Maker(lambda: t(1, 1).addcdiv_(t(1, 0), t(0, 0)), "addcdiv_", nan=1, posinf=1),
    Maker(lambda: torch.zeros(2, 2).addmm_(torch.full((2, 2), 1e30), torch.full((2, 2), 1e30)), "addmm_", posinf=4),
    Maker(lambda: t(3e38, 1).index_add_(0, torch.tensor([0]), t(3e38)), "index_add_", posinf=1),
    Maker(lambda: t(3e38, 1).scatter_add_(0, torch.tensor([0]), t(3e38)), "scatter_add_", posinf=1),
    Maker(lambda: t(3e38, 1).index_put_((torch.tensor([0]),), t(3e38), accumulate=True), "index_put_", posinf=1),
    Maker(lambda: t(1, 2).scatter_reduce_(0, torch.tensor([0]), t(3e38), "prod").mul_(9), "mul_", posinf=1),
    Maker(lambda: t(1, 2, 3)[1:].sub_(2).log_(), "log_", neginf=1),
]

OUT = [
    Maker(lambda: torch.log(t(0.0), out=torch.zeros(1)), "log", neginf=1),
    Maker(lambda: torch.div(t(0.0), t(0.0), out=torch.zeros(1)), "div", nan=1),
    Maker(lambda: torch.sqrt(t(-1.0), out=torch.zeros(1)), "sqrt", nan=1),
    Maker(lambda: torch.add(t(3e38), t(3e38), out=torch.zeros(1)), "add", posinf=1),
    Maker(lambda: torch.cumsum(t(3e38, 3e38), 0, out=torch.zeros(2)), "cumsum", posinf=1),
    Maker(lambda: torch.mm(t(1e30).view(1, 1), t(1e30).view(1, 1), out=torch.zeros((1, 1))), "mm", posinf=1),
    Maker(lambda: torch.mean(torch.ones(1, 0), 1, out=torch.zeros(1)), "mean", nan=1),
]

FOREACH = [
    Maker(lambda: torch._foreach_log([t(1.0), t(0.0)]), "_foreach_log", neginf=1, output=1),
    Maker(lambda: torch._foreach_div([t(1, 2), t(1.0)], [t(1, 1), t(0.0)]), "_foreach_div", posinf=1, output=1),
    Maker(lambda: torch._foreach_sqrt([t(-1.0), t(1.0)]), "_foreach_sqrt", nan=1),
    Maker(lambda: (xs := [t(1.0), t(2.0), t(3e38)], torch._foreach_mul_(xs, 10)), "_foreach_mul_", posinf=1, output=2),
    Maker(
        lambda: (xs := [t(1.0), t(3e38)], torch._foreach_add_(xs, [t(1.0), t(3e38)])),
        "_foreach_add_",
        posinf=1,
        output=1,
    ),
    Maker(
        lambda: (xs := [t(1, 1)], torch._foreach_addcdiv_(xs, [t(1, 0)], [t(0, 0)])),
        "_foreach_addcdiv_",
        nan=1,
        posinf=1,
    ),
    Maker(lambda: torch._foreach_norm([t(1.0), t(1e30, 1e30)]), "_foreach_norm", posinf=1, output=1),
    Maker(lambda: (xs := [t(0.0)], torch._foreach_reciprocal_(xs)), "_foreach_reciprocal_", posinf=1),
    Maker(lambda: (xs := [t(-1.0)], torch._foreach_pow_(xs, 0.5)), "_foreach_pow_", nan=1),
    Maker(
        lambda: (xs := [torch.zeros(1, dtype=torch.float16)], torch._foreach_copy_(xs, [t(1e5)])),
        "_foreach_copy_",
        posinf=1,
    ),
]

BACKWARD = [
    Maker(lambda: gradient(lambda x: x.sqrt(), t(0.0)), "div", posinf=1, node="SqrtBackward0"),
    Maker(lambda: gradient(lambda x: torch.where(x > 0, x.sqrt(), x), t(0.0)), "div", nan=1, node="SqrtBackward0"),
    Maker(lambda: gradient(lambda x: torch.where(x > 1, x.log(), x), t(0.0)), "div", nan=1, node="LogBackward0"),
    Maker(lambda: gradient(lambda x: torch.where(x > 1, 1 / x, x), t(0.0)), "reciprocal", posinf=1),
    Maker(lambda: gradient(lambda x: torch.where(x < 1, x, x.exp()), t(100.0)), "exp", posinf=1),
    Maker(lambda: gradient(lambda x: x.pow(0.5), t(0.0)), "pow", posinf=1, node="PowBackward0"),
    Maker(lambda: gradient(lambda x: x.pow(t(0.5)), t(0.0)), "pow", posinf=1, node="PowBackward1"),
    Maker(lambda: gradient(lambda x: x.acos(), t(1.0)), "rsqrt", posinf=1, node="AcosBackward0"),
    Maker(lambda: gradient(lambda x: x.asin(), t(1.0)), "rsqrt", posinf=1, node="AsinBackward0"),
    Maker(lambda: gradient(lambda x: x.acosh(), t(1.0)), "rsqrt", posinf=1, node="AcoshBackward0"),
    Maker(lambda: gradient(lambda x: x.log1p() * 0, t(-1.0)), "log1p", neginf=1),
    Maker(lambda: gradient(lambda x: x * 1e30 * 1e30, t(0.0)), "mul", posinf=1, node="MulBackward0"),
    Maker(lambda: gradient(lambda x: x / 1e-30 / 1e-30, t(0.0)), "div", posinf=1, node="DivBackward0"),
    Maker(lambda: gradient(lambda x: (x.half() * 60000) * 2, t(0.0)), "mul", posinf=1, node="MulBackward0"),
    Maker(lambda: gradient(lambda x: x.half().float() * 70000, t(0.0)), "_to_copy", posinf=1, node="ToCopyBackward0"),
    Maker(
        lambda: gradient(lambda x: x @ t(3e38).view(1, 1) + x @ t(3e38).view(1, 1), t(0.0).view(1, 1)),
        "add",
        posinf=1,
        node="MmBackward0",
    ),
    Maker(lambda: gradient(lambda x: torch.linalg.eigh(x)[1], torch.eye(2)), "div_", nan=2, node="LinalgEighBackward0"),
    Maker(lambda: gradient(lambda x: torch.linalg.svd(x)[0], torch.eye(2)), "div", nan=2, node="LinalgSvdBackward0"),
    Maker(
        lambda: gradient(lambda x: torch.linalg.inv(x), torch.full((1, 1), 1e-30)),
        "mm",
        posinf=1,
        node="LinalgInvExBackward0",
    ),
    Maker(
        lambda: gradient(lambda x: (x + t(-INF, -INF)).logsumexp(0).nan_to_num(), t(1, 2)),
        "sub",
        nan=2,
        node="LogsumexpBackward0",
    ),
    Maker(lambda: gradient(lambda x: (x + t(-INF, -INF)).softmax(0).nan_to_num(), t(1, 2)), "_softmax", nan=2),
    Maker(
        lambda: gradient(lambda x: F.layer_norm(x * 0, (2,), eps=0.0).nan_to_num(), t(1, 2)), "native_layer_norm", nan=2
    ),
    Maker(lambda: gradient(lambda x: x.std(0).nan_to_num(), t(1.0)), "std", nan=1),
    Maker(lambda: gradient(lambda x: x.square().sum().sqrt(), t(0, 0)), "div", posinf=1, node="SqrtBackward0"),
    Maker(
        lambda: gradient(lambda x: F.embedding(torch.tensor([0, 0]), x) * 2e38, torch.zeros(1, 1)),
        "embedding_dense_backward",
        posinf=1,
        node="EmbeddingBackward0",
    ),
    Maker(lambda: gradient(lambda x: x[[0, 0]] * 2e38, t(0.0)), "_index_put_impl_", posinf=1, node="IndexBackward0"),
    Maker(lambda: gradient(lambda x: x.expand(2) * 2e38, t(0.0)), "sum", posinf=1, node="ExpandBackward0"),
    Maker(lambda: gradient(lambda x: torch.stack([x, x]) * 2e38, t(0.0)), "add", posinf=1, node="StackBackward0"),
    Maker(lambda: gradient(lambda x: x.cumsum(0) * 2e38, t(0, 0)), "cumsum", posinf=1, node="CumsumBackward0"),
    Maker(lambda: gradient(lambda x: x.sinh(), t(89.5)), "sinh", posinf=1),
    Maker(
        lambda: gradient(lambda x: F.conv1d(x, torch.full((1, 1, 2), 2e38)), torch.zeros(1, 1, 3)),
        "convolution_backward",
        posinf=1,
        node="ConvolutionBackward0",
    ),
    Maker(
        lambda: gradient(lambda x: torch.autograd.grad(x.pow(1.5), x, create_graph=True)[0], t(0.0)),
        "pow",
        posinf=1,
        node="PowBackward0",
    ),
]

OPTIMIZERS = [
    Maker(lambda: (w := weight(1.0, 1e30), torch.optim.SGD([w], lr=1e30, foreach=False).step()), "add_", neginf=1),
    Maker(
        lambda: (w := weight(1.0, 1e30), torch.optim.SGD([w], lr=1e30, foreach=True).step()), "_foreach_add_", neginf=1
    ),
    Maker(lambda: (w := weight(1.0, 1e30), torch.optim.SGD([w], lr=1e30, fused=True).step()), "_fused_sgd_", neginf=1),
    Maker(lambda: (w := weight(1.0, 0.0), torch.optim.Adam([w], eps=0.0, foreach=False).step()), "addcdiv_", nan=1),
    Maker(lambda: (w := weight(1.0, 1e30), torch.optim.Adam([w], foreach=False).step()), "addcmul_", posinf=1),
    Maker(
        lambda: (w := weight(1.0, 0.0), torch.optim.AdamW([w], eps=0.0, foreach=True).step()),
        "_foreach_addcdiv_",
        nan=1,
    ),
    Maker(lambda: (w := weight(1.0, 0.0), torch.optim.AdamW([w], eps=0.0, fused=True).step()), "_fused_adamw_", nan=1),
    Maker(lambda: (w := weight(1.0, 0.0), torch.optim.RMSprop([w], eps=0.0, foreach=False).step()), "addcdiv_", nan=1),
    Maker(lambda: (w := weight(1.0, 0.0), torch.optim.Adagrad([w], eps=0.0, foreach=False).step()), "addcdiv_", nan=1),
    Maker(lambda: (w := weight(1.0, 1e30), torch.optim.Adadelta([w], foreach=False).step()), "addcmul_", posinf=1),
    Maker(lambda: (w := weight(1.0, 0.0), torch.optim.NAdam([w], eps=0.0, foreach=False).step()), "addcdiv_", nan=1),
]

FAMILIES = {
    name.lower(): value for name, value in list(globals().items()) if name.isupper() and isinstance(value, list)
}
