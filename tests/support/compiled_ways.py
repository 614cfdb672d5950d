"""Ways to compile and to run compiled code, each with a planted fault."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.compile_fx import compile_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

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
def backend_that_calls_inductor():
    def backend(graph, inputs):
        return compile_fx(graph, inputs)

    @functools.partial(torch.compile, backend=backend)
    def loss(x, w):
        return torch.log(torch.relu(x * w)).sum()  # BUG

    loss(zeros(), torch.ones(4, requires_grad=True)).backward()


@case("backward", "aten::div", "aten::mul", node="SqrtBackward0")
def backend_that_runs_code_of_inductor():
    def backend(graph, inputs):
        compiled = torch._dynamo.lookup_backend("inductor")(graph, inputs)
        return lambda *args: compiled(*args)

    @functools.partial(torch.compile, backend=backend)
    def loss(x, w):
        return torch.sqrt(x * w).sum()  # BUG

    w = torch.ones(4, requires_grad=True)
    loss(zeros(), w).backward()
    torch.optim.SGD([w], lr=0.1).step()


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


@case("forward", "aten::div", module="blocks.2.norm")
def blocks_that_are_alike():
    """Compiled once, in the first of them."""

    class Norm(nn.Module):
        def forward(self, x):
            return x / x.square().sum(-1, keepdim=True).sqrt()  # BUG

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(4, 4), Norm()

        def forward(self, x):
            return self.norm(self.fc(x)) + x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*[Block() for _ in range(4)])

        def forward(self, x):
            return self.blocks(x).sum()

    model = Net()
    nn.init.zeros_(model.blocks[2].fc.weight)
    nn.init.zeros_(model.blocks[2].fc.bias)
    for block in model.blocks:
        block.compile()
    model(torch.randn(3, 4)).backward()


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

    # PyTorch's exp for AVX-512 makes 0 of a NaN in this kernel, and nothing non-finite comes out.
    with torch._inductor.config.patch({"cpp.simdlen": 256}), torch.no_grad():
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


@case("backward", "aten::pow", "aten::mul", module="norm", node="RsqrtBackward0")
def random_numbers():
    class Norm(nn.Module):
        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-30)  # BUG

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.norm = nn.Parameter(torch.zeros(3)), Norm()

        def forward(self):
            return (self.norm(self.shift * torch.randn(2, 3)) * torch.randn(3)).sum()

    model = Net()
    torch.compile(model)().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@case("forward", "aten::div")
def dropout_as_in_generated_code():
    """At a location that generated code drops and eager code would keep."""

    def seeded(function, x):
        torch.manual_seed(5)
        return function(x)

    x = torch.ones(64, requires_grad=True)
    is_dropped = [seeded(drop, x) == 0 for drop in (F.dropout, torch.compile(F.dropout))]
    place = int((is_dropped[1] & ~is_dropped[0]).nonzero()[0])

    @torch.compile
    def loss(x):
        kept = F.dropout(x)
        return kept[place] / kept[place]  # BUG

    seeded(loss, x).backward()


@case("backward", "aten::div", "aten::mul", module="layers.1.pool", node="DivBackward0")
def checkpointed_method():
    class Pool(nn.Module):
        def forward(self, x, mask):
            mean = (x * mask).sum(1) / mask.sum(1)  # BUG
            return torch.where(mask.sum(1) > 0, mean, torch.zeros_like(mean))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.pool = nn.Linear(2, 2), Pool()

        def forward(self, x, mask):
            h = self.fc(x)
            return h + self.pool(h, mask)[:, None]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x, mask):
            x = self.layers[0](x, torch.ones_like(mask))
            return checkpoint(self.layers[1].forward, x, mask, use_reentrant=False).pow(2).mean()

    model = Net()
    mask = torch.ones(2, 3, 1)
    mask[1] = 0
    torch.compile(model)(torch.randn(2, 3, 2), mask).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@case("backward", "aten::div", module="gate", node="LogAbsBackward")
def autograd_function():
    class LogAbs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.log(x.abs().clamp(min=1e-8))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (x.abs() > 1e-8) * g / x

    class Gate(nn.Module):
        def forward(self, x):
            return LogAbs.apply(x * 2) + 1  # BUG

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.x, self.gate = nn.Parameter(torch.tensor([0.0, 0.5])), Gate()

        def forward(self):
            return self.gate(self.x).sum()

    model = Net()
    torch.compile(model)().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@case("backward", "aten::div", node="SqrtBackward0")
def returned_mask():
    """The mask is not a cause of the bad gradients."""

    @torch.compile
    def loss(w):
        mask = torch.full((3, 3), float("-inf")).triu(1)
        return mask, torch.sqrt(w * 2).sum()  # BUG

    w = torch.tensor([0.0, 1.0], requires_grad=True)
    loss(w)[1].backward()
    torch.optim.SGD([w], lr=0.1).step()


@case("backward", "aten::div", module="fc", node="BackwardHookFunctionBackward")
def hook_in_backward():
    @torch.compile
    def rescale(module, grad_in, grad_out):
        return (grad_in[0] / grad_in[0].abs().max(),)  # BUG

    model = nn.Sequential()
    model.add_module("emb", nn.Linear(2, 2))
    model.add_module("fc", nn.Linear(2, 2))
    nn.init.zeros_(model.fc.weight)
    model.fc.register_full_backward_hook(rescale)
    model(torch.randn(3, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


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
