"""Ways to compile and to run what is compiled, each with a planted fault."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from tests.support import compiled_programs
from tests.support.compiled_programs import Planted

WAYS: dict[str, Planted] = {}
case = functools.partial(compiled_programs.case, into=WAYS)


class Log(nn.Module):
    """Its logarithm meets a zero where an input is not positive."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        nn.init.eye_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        h = torch.relu(self.fc(x))
        return torch.log(h).sum()


def zeros():
    return torch.zeros(2, 4)


@case("forward", "aten::log")
def max_autotune():
    @functools.partial(torch.compile, mode="max-autotune")
    def loss(x, w):
        return torch.log(torch.relu(x * w)).sum()  # BUG

    loss(zeros(), torch.ones(4, requires_grad=True)).backward()


@case("forward", "aten::log")
def reduce_overhead():
    @functools.partial(torch.compile, mode="reduce-overhead")
    def loss(x, w):
        return torch.log(torch.relu(x * w)).sum()  # BUG

    loss(zeros(), torch.ones(4, requires_grad=True)).backward()


@case("forward", "aten::log")
def freezing():
    class Frozen(Log):
        def forward(self, x):
            return torch.log(torch.relu(self.fc(x))).sum()  # BUG

    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        torch.compile(Frozen().eval())(zeros()).item()


@case("forward", "aten::log")
def cpp_wrapper():
    @torch.compile
    def loss(x, w):
        return torch.log(torch.relu(x * w)).sum()  # BUG

    with torch._inductor.config.patch(cpp_wrapper=True):
        loss(zeros(), torch.ones(4, requires_grad=True)).backward()


@case("backward", "aten::div", "aten::mul")
def compiled_autograd():
    def loss(x, w):
        return torch.sqrt((x * w).abs()).sum()  # BUG

    w = torch.zeros(4, requires_grad=True)
    with torch._dynamo.config.patch(compiled_autograd=True):

        @torch.compile
        def step(x):
            loss(x, w).backward()

        step(torch.ones(2, 4))
    torch.optim.SGD([w], lr=0.1).step()


@case("forward", "aten::log")
def nested_region():
    @torch.compiler.nested_compile_region
    def inner(h):
        return torch.log(h) * 2  # BUG

    @torch.compile
    def loss(x, w):
        return inner(torch.relu(x * w)).sum()

    loss(zeros(), torch.ones(4, requires_grad=True)).backward()


@case("forward", "aten::log")
def conditional():
    @torch.compile
    def loss(x):
        def positive(x):
            return x * 2

        def other(x):
            return torch.log(x)  # BUG

        return torch.cond(x.sum() > 0, positive, other, (x,)).sum()

    with torch.no_grad():
        loss(zeros()).item()


@case("forward", "aten::bmm")
def attention_operator():
    @torch.compile
    def loss(q, k):
        def biased(score, batch, head, i, j):
            return score + i

        return flex_attention(q * 1e30, k * 1e30, k, score_mod=biased).sum()  # BUG

    with torch.no_grad():
        loss(*torch.randn(2, 1, 2, 16, 8)).item()


@case("forward", "aten::mul")
def attention_score():
    @torch.compile
    def loss(q, k):
        def scaled(score, batch, head, i, j):
            return score * 3e38  # BUG

        return flex_attention(q, k, k, score_mod=scaled).sum()

    with torch.no_grad():
        loss(*torch.full((2, 1, 2, 16, 8), 4.0)).item()


@case("forward", "aten::log")
def gradient_transform():
    @torch.compile
    def loss(x):
        def energy(x):
            return torch.log(x).sum()  # BUG

        gradient, value = torch.func.grad_and_value(energy)(x)
        return value + gradient.nan_to_num(0, 0, 0).sum()

    with torch.no_grad():
        loss(zeros()).item()


@case("forward", "aten::log")
def vectorised():
    @torch.compile
    def loss(x):
        def energy(row):
            return torch.log(row).sum()  # BUG

        return torch.vmap(energy)(x).sum()

    with torch.no_grad():
        loss(zeros()).item()


@case("forward", "aten::log")
def exported_and_compiled():
    class Net(Log):
        def forward(self, x):
            return torch.log(torch.relu(self.fc(x))).sum()  # BUG

    exported = torch.export.export(Net(), (zeros(),)).module()
    with torch.no_grad():
        torch.compile(exported)(zeros()).item()


@case("forward", "aten::log")
def inference_mode():
    @torch.compile
    def loss(x):
        return torch.log(x).sum()  # BUG

    with torch.inference_mode():
        loss(zeros()).item()


@case("forward", "aten::log")
def compiled_before():
    @torch.compile
    def loss(x):
        return torch.log(x).sum()  # BUG

    with torch.no_grad():
        loss(torch.ones(2, 4)).item()
        loss(zeros()).item()


@case("forward", "torchnan_ways::scale")
def custom_operator():
    @torch.library.custom_op("torchnan_ways::scale", mutates_args=())
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x / x.sum()

    scale.register_fake(lambda x: torch.empty_like(x))

    @torch.compile
    def loss(x):
        return scale(x * 2).sum()  # BUG

    with torch.no_grad():
        loss(zeros()).item()


@case("backward", "aten::div", "aten::mul")
def backward_twice():
    @torch.compile
    def loss(x, w):
        return torch.sqrt((x * w).abs()).sum()  # BUG

    w = torch.zeros(4, requires_grad=True)
    out = loss(torch.ones(2, 4), w)
    out.backward(retain_graph=True)
    out.backward()
    torch.optim.SGD([w], lr=0.1).step()


@case("forward", "aten::div")
def written_buffers():
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            out = x / self.scale  # BUG
            self.scale.mul_(0)
            return out.sum()

    model = torch.compile(Ema())
    with torch.no_grad():
        model(torch.ones(2, 4)).item()
        model(torch.ones(2, 4)).item()
