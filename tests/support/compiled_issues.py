"""Sixty small programs after public reports of NaN and Inf under torch.compile, each with its origin.

A program is a function of tensors that is compiled; the line at fault ends with ``# BUG``. Its result is summed and
differentiated where an input requires a gradient, else read. ``issue`` is the report that it re-enacts, of
pytorch/pytorch where no other repository is named.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

INF = float("inf")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and what its report must name: ``ops`` are the operations that are right."""

    function: Callable[..., torch.Tensor]
    phase: str
    ops: tuple[str, ...]
    inputs: Callable[[], tuple[Any, ...]]
    issue: str
    options: dict[str, Any]
    line: int

    def run(self) -> None:
        """Runs it compiled."""
        torch.manual_seed(0)
        inputs = self.inputs()
        result = torch.compile(self.function, **self.options)(*inputs)
        leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        if not leaves:
            result.sum().item()
            return
        result.sum().backward()
        torch.optim.SGD(leaves, lr=0.1).step()


PROGRAMS: dict[str, Program] = {}


def program(phase, *ops, inputs, issue="", **options):
    def add(function):
        lines, first = inspect.getsourcelines(function)
        line = next(first + i for i, text in enumerate(lines) if text.rstrip().endswith("# BUG"))
        PROGRAMS[function.__name__] = Program(
            function, phase, tuple("aten::" + op for op in ops), inputs, issue, options, line
        )
        return function

    return add


def leaf(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


# -- forward


@program("forward", "log", inputs=lambda: (leaf(1.0, 0.0, 2.0),), issue="#114109")
def log_of_a_zero_probability(p):
    q = p / 3
    return -(q * q.log()).sum()  # BUG


@program("forward", "rsqrt", inputs=lambda: (leaf(*[1.0] * 8),), issue="#183605")
def rsqrt_of_a_variance_of_zero(x):
    centred = x - x.mean()
    scale = torch.rsqrt(centred.square().mean())  # BUG
    return centred * scale


@program("forward", "div", inputs=lambda: (torch.zeros(4, 4, requires_grad=True),), issue="#173793")
def normalised_rows_of_zeros(x):
    return x / x.norm(dim=-1, keepdim=True)  # BUG


@program("forward", "exp", inputs=lambda: (leaf(10.0, 100.0, 2.0),), issue="huggingface/pytorch-image-models#2616")
def softmax_by_hand(x):
    e = torch.exp(x)  # BUG
    return e / e.sum()


@program(
    "forward",
    "_softmax",
    inputs=lambda: (torch.randn(2, 4, requires_grad=True), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]).bool()),
    issue="#103963",
)
def attention_row_without_keys(x, keep):
    scores = x.masked_fill(~keep, -INF)
    return torch.softmax(scores, -1)  # BUG


@program(
    "forward",
    "_log_softmax",
    inputs=lambda: (torch.randn(2, 4, requires_grad=True), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]).bool()),
    issue="#103963",
)
def log_softmax_of_nothing(x, keep):
    scores = x.masked_fill(~keep, -INF)
    return torch.log_softmax(scores, -1)  # BUG


@program("forward", "sqrt", inputs=lambda: (leaf(1.0, 4.0, -1.0),), issue="#189808")
def sqrt_of_a_negative(x):
    y = x * 2
    return torch.sqrt(y).tanh()  # BUG


@program("forward", "acos", inputs=lambda: (leaf(0.5, 0.9, 1.1),), issue="#188225")
def angle_beyond_one(x):
    return torch.acos(x * 1.0).cos()  # BUG


@program("forward", "atanh", inputs=lambda: (leaf(0.5, 1.0),), issue="#188225")
def atanh_of_one(x):
    return torch.atanh(x).sin()  # BUG


@program("forward", "log1p", inputs=lambda: (leaf(0.5, -2.0),), issue="#197089")
def log1p_below_minus_one(x):
    y = x + 0.5
    return torch.log1p(y)  # BUG


@program("forward", "pow", inputs=lambda: (leaf(2.0, -2.0),), issue="#95644")
def fractional_power_of_a_negative(x):
    return torch.pow(x, 0.5).relu()  # BUG


@program("forward", "reciprocal", "div", inputs=lambda: (leaf(2.0, 0.0),), issue="#146129")
def reciprocal_of_zero(x):
    y = torch.reciprocal(x)  # BUG
    return torch.sigmoid(y) - y


@program("forward", "mul", "pow", inputs=lambda: (leaf(1e20, 1.0),), issue="#173793")
def square_overflows(x):
    y = x * x  # BUG
    return y - y


@program("forward", "mul", inputs=lambda: (leaf(300.0, 2.0, dtype=torch.float16),), issue="#95644")
def half_product_overflows(x):
    return x * 300.0  # BUG


@program("forward", "mm", inputs=lambda: (torch.full((4, 64), 1e19, requires_grad=True),), issue="#95644")
def matmul_overflows(x):
    y = x @ x.t()  # BUG
    return y - y


@program(
    "forward",
    "addmm",
    "mm",
    inputs=lambda: (torch.full((4, 64), 1e19, requires_grad=True), torch.full((4, 64), 1e20), torch.ones(4)),
    issue="#95644",
)
def linear_overflows(x, w, b):
    y = F.linear(x, w, b)  # BUG
    return y - y


@program("forward", "sum", inputs=lambda: (torch.full((1000,), 3e38, requires_grad=True),), issue="#197089")
def sum_overflows(x):
    return torch.sum(x)  # BUG


@program("forward", "div", inputs=lambda: (torch.randn(8, requires_grad=True), torch.zeros(8)), issue="#146129")
def mean_over_an_empty_mask(x, mask):
    kept = x * mask
    return kept.sum() / mask.sum()  # BUG


@program(
    "forward",
    "mean",
    "div",
    "sum",
    inputs=lambda: (torch.randn(8, requires_grad=True), torch.zeros(0)),
    issue="#146129",
)
def mean_of_nothing(x, nothing):
    return x.sum() + nothing.mean()  # BUG


@program(
    "forward", "var", "div", "mul", "sum", inputs=lambda: (torch.randn(4, 1, requires_grad=True),), issue="#183605"
)
def variance_of_one_sample(x):
    scale = x.var(-1, keepdim=True)  # BUG
    return x / (scale + 1)


@program("forward", "std", "sqrt", "div", inputs=lambda: (torch.randn(4, 1, requires_grad=True),), issue="#197089")
def deviation_of_one_sample(x):
    return x / (x.std(-1, keepdim=True) + 1e-6)  # BUG


@program(
    "forward", "exp", inputs=lambda: (torch.full((4,), 200.0, requires_grad=True),), issue="huggingface/transformers"
)
def log_variance_overflows(logvar):
    mean = logvar * 0
    kl = -0.5 * (1 + logvar - mean.square() - logvar.exp())  # BUG
    return kl.mean()


@program("forward", "logit", "log", "div", inputs=lambda: (leaf(0.5, 1.0),), issue="#188225")
def logit_of_one(p):
    return torch.logit(p)  # BUG


@program(
    "forward",
    "log",
    inputs=lambda: (torch.full((4,), -120.0, requires_grad=True),),
    issue="huggingface/pytorch-image-models#2616",
)
def log_of_a_saturated_sigmoid(x):
    p = torch.sigmoid(x)
    return -torch.log(p)  # BUG


@program(
    "forward",
    "log",
    inputs=lambda: (torch.full((4,), 30.0, requires_grad=True),),
    issue="huggingface/pytorch-image-models#2616",
)
def cross_entropy_by_hand(x):
    p = torch.sigmoid(x)
    return -torch.log(1 - p)  # BUG


@program("forward", "prod", inputs=lambda: (torch.full((200,), 10.0, requires_grad=True),), issue="#194706")
def product_overflows(x):
    return torch.prod(x)  # BUG


@program("forward", "cumsum", inputs=lambda: (torch.full((8,), 1e38, requires_grad=True),), issue="#146129")
def cumulative_sum_overflows(x):
    y = torch.cumsum(x, 0)  # BUG
    return y - y


@program("forward", "exp", inputs=lambda: (torch.full((8,), 30.0, requires_grad=True),), issue="#146129")
def state_space_decay_overflows(a):
    steps = torch.cumsum(a, 0)
    return torch.exp(steps) * 1e-9  # BUG


@program("forward", "div", inputs=lambda: (torch.zeros(3, 4, requires_grad=True),), issue="#136662")
def cosine_by_hand(x):
    a, b = x[0], x[1]
    return (a * b).sum() / (a.norm() * b.norm())  # BUG


@program("forward", "sub", inputs=lambda: (torch.full((4,), 3e38, requires_grad=True),), issue="#95644")
def difference_overflows(x):
    y = x - (-x)  # BUG
    return y / y


@program("forward", "tan", "div", inputs=lambda: (leaf(1.0, 2.0), torch.zeros(2)), issue="#188225")
def division_by_a_zero_angle(x, angle):
    return x / torch.tan(angle)  # BUG


@program("forward", "fmod", "remainder", inputs=lambda: (leaf(1.0, 2.0), torch.zeros(2)), issue="#188225")
def remainder_by_zero(x, y):
    return torch.remainder(x, y)  # BUG


@program("forward", "atan2", "div", inputs=lambda: (leaf(1.0, 0.0), torch.zeros(2)), issue="#186799")
def ratio_of_coordinates(y, x):
    return torch.atan(y / x)  # BUG


@program("forward", "lgamma", inputs=lambda: (leaf(1.0, 0.0),), issue="#196798")
def gamma_at_a_pole(x):
    return torch.lgamma(x) * 2  # BUG


@program("forward", "digamma", inputs=lambda: (leaf(1.0, -1.0),), issue="#196798")
def digamma_at_a_pole(x):
    return torch.digamma(x) * 2  # BUG


@program("forward", "erfinv", inputs=lambda: (leaf(0.5, 1.0),), issue="#196798")
def erfinv_of_one(x):
    return torch.erfinv(x) * 2  # BUG


@program("forward", "log2", inputs=lambda: (leaf(0.0, 1.0),), issue="#188225")
def bits_of_nothing(p):
    return (p * torch.log2(p)).sum()  # BUG


@program("forward", "cosh", inputs=lambda: (leaf(100.0, 1.0),), issue="#188225")
def log_cosh_by_hand(x):
    return torch.log(torch.cosh(x))  # BUG


@program("forward", "expm1", inputs=lambda: (leaf(100.0, 1.0),), issue="#188225")
def softplus_inverse_overflows(x):
    return torch.log(torch.expm1(x))  # BUG


@program("forward", "sinh", inputs=lambda: (leaf(100.0, 1.0),), issue="#188225")
def sinh_overflows(x):
    return torch.sinh(x) * 2  # BUG


@program(
    "forward",
    "div",
    inputs=lambda: (torch.randn(2, 3, requires_grad=True), torch.zeros(2, dtype=torch.long)),
    issue="#182012",
)
def average_over_a_length_of_zero(x, length):
    return x.sum(-1) / length  # BUG


@program("forward", "log", inputs=lambda: (torch.randn(4, 8, requires_grad=True),), issue="#159469", dynamic=True)
def log_with_dynamic_shapes(x):
    return torch.log(F.relu(x)).mean()  # BUG


@program("forward", "log", inputs=lambda: (torch.randn(4, 8, requires_grad=True),), issue="#159469", fullgraph=True)
def log_in_one_graph(x):
    return torch.log(F.relu(x)).mean()  # BUG


@program(
    "forward", "div", inputs=lambda: (torch.zeros(4, requires_grad=True),), issue="#166949", mode="reduce-overhead"
)
def division_with_less_overhead(x):
    return (x / x).sum()  # BUG


# -- read in inference


@program("forward", "log", inputs=lambda: (torch.zeros(4),), issue="#166949")
def inference_of_a_log(x):
    return torch.log(x).sum()  # BUG


@program("forward", "div", inputs=lambda: (torch.zeros(4),), issue="#166949")
def inference_of_a_ratio(x):
    return (x / x.sum()).sum()  # BUG


@program("forward", "sub", inputs=lambda: (torch.full((4,), -INF),), issue="#103963")
def inference_of_masked_scores(scores):
    shifted = scores - scores.amax()  # BUG
    return shifted.exp().sum()


# -- backward


@program("backward", "div", inputs=lambda: (leaf(0.0, 1.0),), issue="#100854")
def gradient_of_a_root_at_zero(x):
    return torch.sqrt(x)  # BUG


@program(
    "backward",
    "div",
    "pow",
    "mul",
    inputs=lambda: (torch.zeros(3, requires_grad=True),),
    issue="KellerJordan/modded-nanogpt#268",
)
def gradient_of_a_norm_at_zero(x):
    return torch.sqrt((x * x).sum())  # BUG


@program("backward", "mul", "div", inputs=lambda: (leaf(0.0, 1.0),), issue="#185509")
def where_does_not_stop_the_gradient(x):
    return torch.where(x > 0, torch.sqrt(x), x)  # BUG


@program("backward", "div", "mul", inputs=lambda: (leaf(0.0, 2.0),), issue="#185509")
def where_after_a_log(x):
    y = torch.log(x)  # BUG
    return torch.where(x > 0, y, torch.zeros_like(y))


@program("backward", "mul", "div", "rsqrt", inputs=lambda: (leaf(1.0, 0.5),), issue="#186799")
def gradient_of_an_arc_at_one(x):
    return torch.asin(x)  # BUG


@program("backward", "mul", "pow", inputs=lambda: (leaf(0.0, 1.0),), issue="#186799")
def gradient_of_a_small_power(x):
    return torch.pow(x, 0.3)  # BUG


@program("backward", "mul", "div", inputs=lambda: (leaf(1e-30, 1.0),), issue="#197089")
def gradient_of_a_log_overflows(x):
    return torch.log(x) * 1e20  # BUG


@program("backward", "mul", "div", "neg", "pow", inputs=lambda: (leaf(1e-20, 1.0),), issue="#136662")
def gradient_of_a_reciprocal_overflows(x):
    return torch.reciprocal(x)  # BUG


@program("backward", "div", "mul", inputs=lambda: (torch.zeros(2, 3, requires_grad=True),), issue="#193061")
def gradient_of_a_deviation_of_zero(x):
    return torch.sqrt(x.var(-1))  # BUG


@program("backward", "div", "mul", inputs=lambda: (torch.zeros(2, 3, requires_grad=True),), issue="#180164")
def gradient_of_a_distance_of_zero(x):
    return torch.linalg.vector_norm(x[0] - x[1], 2) + (x[0] - x[1]).square().sum().sqrt()  # BUG


@program("backward", "_to_copy", inputs=lambda: (leaf(300.0, 2.0, dtype=torch.float16),), issue="#95644")
def half_gradient_overflows(x):
    return x.float() * 3e5  # BUG


@program("backward", "div", "mul", inputs=lambda: (leaf(0.0, 1.0),), issue="#100854", dynamic=True)
def gradient_of_a_root_with_dynamic_shapes(x):
    return torch.sqrt(x).sum()  # BUG


@program("backward", "mul", "div", inputs=lambda: (leaf(0.0, 1.0),), issue="#185509", fullgraph=True)
def clamp_comes_after_the_root(x):
    return torch.sqrt(x).clamp(min=1e-3)  # BUG
