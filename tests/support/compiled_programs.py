"""Programs with torch.compile and a planted fault, and clean ones. The line at fault ends with ``# BUG``.

Each is a function without arguments. The operations are those that are reported when the same program runs without
torch.compile; Inductor's arithmetic alone makes the value of ``compiled_only``.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Planted:
    """A program and what its report must name.

    Attributes:
        run: the program.
        phase: forward, backward or optimizer.
        ops: the operations that are right.
        line: the line at fault; ``None`` where it is in a package.
        module: its module; ``None`` where it does not matter.
        region: the function that was compiled; ``None`` where it does not matter.
        kernel: a part of the name of the kernel that wrote it first.
        replay: how the origin is found.
        node: the node of the backward pass; ``None`` where it does not matter.
    """

    run: Callable[[], None]
    phase: str
    ops: tuple[str, ...]
    line: int | None
    module: str | None
    region: str | None
    kernel: str
    replay: str
    node: str | None


CASES: dict[str, Planted] = {}
CLEAN: dict[str, Callable[[], None]] = {}


def case(phase, *ops, module=None, region=None, kernel="", replay="traced", node=None, into=CASES):
    def add(fn):
        lines, first = inspect.getsourcelines(fn)
        bug = next((first + i for i, line in enumerate(lines) if line.rstrip().endswith("# BUG")), None)
        into[fn.__name__] = Planted(fn, phase, ops, bug, module, region, kernel, replay, node)
        return fn

    return add


def clean(fn):
    CLEAN[fn.__name__] = fn
    return fn


def train(model, batches, lr=0.1, loss_of=lambda out: out.sum()):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        optimizer.step()


@case("forward", "aten::log", module="", kernel="log", region="forward")
def fwd_log_zero():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x):
            h = torch.relu(self.fc(x) - 100) * 2
            h = torch.log(h)  # BUG
            return torch.tanh(h * 3 + 1) + h * 2

    torch.manual_seed(0)
    train(torch.compile(Net()), [torch.randn(8, 16)])


@case("forward", "aten::div", module="norm", kernel="div", region="forward")
def fwd_zero_over_zero():
    class Norm(nn.Module):
        def forward(self, x, mask):
            x = x * mask
            x = x.sum(-1) / mask.sum(-1)  # BUG
            return x * 0.5

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(16, 16), Norm()

        def forward(self, batch):
            x, mask = batch
            return torch.sigmoid(self.norm(self.fc(x), mask)).mean()

    torch.manual_seed(0)
    masks = [torch.ones(8, 16), torch.ones(8, 16)]
    masks[1][3] = 0
    train(torch.compile(Net()), [(torch.randn(8, 16), mask) for mask in masks])


@case("forward", "aten::exp", kernel="exp", region="loss")
def fwd_exp_overflow():
    @torch.compile
    def loss(x, w):
        logits = x @ w
        e = torch.exp(logits * 30)  # BUG
        p = e / e.sum(-1, keepdim=True)
        return (p * p).mean()

    torch.manual_seed(0)
    w = torch.randn(32, 32, requires_grad=True)
    loss(torch.randn(8, 32), w).backward()


@case("forward", "aten::_softmax", "aten::softmax", module="attn", kernel="_softmax", region="forward")
def fwd_masked_softmax():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x, keep):
            scores = self.q(x) @ self.k(x).transpose(-1, -2) / 4
            scores = scores.masked_fill(~keep[:, None, :], float("-inf"))
            p = torch.softmax(scores, -1)  # BUG
            return p @ self.v(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.out = Attention(), nn.Linear(16, 1)

        def forward(self, batch):
            return self.out(torch.relu(self.attn(*batch))).mean()

    torch.manual_seed(0)
    keep = torch.ones(4, 6, dtype=torch.bool)
    keep[2] = False
    train(torch.compile(Net()), [(torch.randn(4, 6, 16), keep)])


@case("forward", "aten::mul", "aten::pow", kernel="pow", region="loss")
def fwd_fp16_overflow():
    @torch.compile
    def loss(x, scale):
        h = x * scale
        h = h.square()  # BUG
        return torch.sigmoid(h.view(8, 8) @ torch.eye(8, dtype=torch.float16) - h.view(8, 8)).float().mean()

    x = torch.linspace(0, 4, 64, dtype=torch.float16)
    scale = torch.tensor(100.0, dtype=torch.float16, requires_grad=True)
    loss(x, scale).backward()


@case("forward", "aten::div", kernel="native_dropout", region="loss")
def fwd_after_dropout():
    """Only the drawn mask causes it: one of 64 rows of 2 is dropped entirely."""

    @torch.compile
    def loss(x, w):
        h = F.dropout(torch.sigmoid(x * w), 0.1, training=True)
        p = h / h.sum(-1, keepdim=True)  # BUG
        return (p * p).mean()

    torch.manual_seed(1)
    x, w = torch.randn(64, 2), torch.ones(2, requires_grad=True)
    for _ in range(20):
        out = loss(x, w)
        out.backward()
        if not math.isfinite(out.detach()):
            break


@case("backward", "aten::div", "aten::mul", kernel="div", region="loss")
def bwd_sqrt_zero():
    @torch.compile
    def loss(a, b):
        d = ((a - b) * 2).square().sum(-1)
        d = torch.sqrt(d)  # BUG
        return (d * 3).mean()

    torch.manual_seed(0)
    a = torch.randn(8, 4, requires_grad=True)
    b = a.detach().clone()
    b[1:] += 1
    loss(a, b).backward()
    torch.optim.SGD([a], lr=0.1).step()


@case("backward", "aten::mul", "aten::div", kernel="div", region="forward")
def bwd_where_trap():
    class Safe(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))

        def forward(self, x):
            y = self.w * x
            return torch.where(y > 0, y.log(), torch.zeros_like(y)).sum()  # BUG

    train(torch.compile(Safe()), [torch.ones(3)])


@case("backward", "aten::div", "aten::mul", "aten::pow", kernel="pow", region="forward")
def bwd_norm_of_zero():
    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            z = x * self.w
            n = z.pow(2).sum().pow(0.5)  # BUG
            return (z / (n + 1e-6)).sum() + n

    train(torch.compile(Normalize()), [torch.ones(4)])


@case("forward", "aten::div", "aten::mean", module="", kernel="div", region="forward")
def dynamic_shapes():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            h = torch.relu(self.fc(x))
            var = (h - h.mean(0)).square().sum(0) / (x.shape[0] - 4)  # BUG
            return torch.log1p(var).sum()

    torch.manual_seed(0)
    model = Pool()
    nn.init.constant_(model.fc.bias, 1.0)
    train(torch.compile(model, dynamic=True), [torch.randn(n, 8) for n in (7, 9, 12, 4)], lr=0.001)


@case(
    "forward",
    "aten::native_layer_norm",
    module="transformer.h.1.ln_2",
    kernel="native_layer_norm",
)
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_head=2, n_embd=32, vocab_size=101, n_positions=64, use_cache=False)
    model = GPT2LMHeadModel(config).train()
    with torch.no_grad():
        model.transformer.h[1].ln_2.weight[3] = 3e38
    compiled = torch.compile(model)
    ids = torch.randint(0, 101, (2, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    compiled(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


@case("forward", "aten::log", kernel="log", region="loss")
def graph_break_second():
    @torch.compile
    def loss(x, w):
        h = torch.relu(x * w) * 2
        torch._dynamo.graph_break()
        h = (h - 1).clamp(min=0)
        return (h.log() + 3).mean()  # BUG

    torch.manual_seed(0)
    loss(torch.randn(32), torch.ones(32, requires_grad=True)).backward()


@case("forward", "aten::sqrt", kernel="sqrt", region="loss")
def graph_break_first():
    """Made in the first graph, used in the second."""

    @torch.compile
    def loss(x, w):
        h = torch.sqrt(x * w - 1) * 2  # BUG
        torch._dynamo.graph_break()
        return (h.tanh() + 3).mean()

    torch.manual_seed(0)
    loss(torch.rand(32), torch.ones(32, requires_grad=True)).backward()


@case("backward", "aten::div", "aten::mul", kernel="div", region="loss")
def graph_break_backward():
    """Made in the backward of the first of two graphs."""

    @torch.compile
    def loss(x, w):
        h = torch.sqrt((x * w).square()) * 2  # BUG
        torch._dynamo.graph_break()
        return (h.tanh() + 3).mean()

    torch.manual_seed(0)
    w = torch.ones(32, requires_grad=True)
    loss(torch.relu(torch.randn(32)), w).backward()
    torch.optim.SGD([w], 0.1).step()


@case("forward", "aten::div", kernel="div", region="forward")
def mutated_buffer():
    """The graph writes the buffer that it divides by."""

    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x):
            h = self.fc(x)
            out = (h - h.detach()) + (h.detach() * 0 + 2) / self.scale  # BUG
            self.scale.copy_(x.detach().abs().amax(0))
            return out.sum()

    torch.manual_seed(0)
    good, zero = torch.randn(4, 8), torch.zeros(4, 8)
    train(torch.compile(Ema()), [good, zero, good])


@case("forward", "aten::log_", "aten::log", kernel="log", region="normalise")
def mutated_input():
    @torch.compile
    def normalise(x):
        x.sub_(x.amin())
        x.log_()  # BUG
        x.mul_(2)
        return x.sum() * 0.5

    torch.manual_seed(0)
    normalise(torch.randn(100)).item()


@case("forward", "aten::rsqrt", module="block.1", kernel="rsqrt", region="forward")
def at_step_five():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            h = self.fc(x)
            return x + h * torch.rsqrt(h.var(-1, keepdim=True, unbiased=False) * x.abs().amax())  # BUG

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(Block(), Block())

        def forward(self, x):
            return self.block(x).square().mean()

    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model.block[0].fc.weight.copy_(torch.eye(8))
        model.block[0].fc.bias.zero_()
    batches = [torch.randn(4, 8) for _ in range(6)]
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step, batch in enumerate(batches, 1):
        if step == 5:
            with torch.no_grad():
                model.block[1].fc.weight.zero_()
                model.block[1].fc.bias.zero_()
        optimizer.zero_grad()
        compiled(batch).backward()
        optimizer.step()


@case(
    "optimizer",
    "aten::addcdiv_",
    "aten::_foreach_addcdiv_",
    "aten::div",
    "aten::addcdiv",
    "aten::_foreach_addcdiv",
    kernel="addcdiv",
)
def compiled_optimizer():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), eps=0.0)

    @torch.compile
    def step():
        optimizer.step()  # BUG

    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(2, 4)
        x[:, 0] = 0
        model(x).sum().backward()
        step()


@case("forward", "aten::acos", "aten::div", "aten::mul", kernel="acos", region="forward")
def regional_blocks():
    """Each block compiled on its own, as torchtitan and diffusers do."""

    class Block(nn.Module):
        def __init__(self, i):
            super().__init__()
            self.fc, self.i = nn.Linear(8, 8), i

        def forward(self, x):
            h = torch.tanh(self.fc(x))
            return x + torch.acos(h * (1.5 if self.i == 2 else 0.5))  # BUG

    torch.manual_seed(3)
    blocks = nn.Sequential(*[Block(i) for i in range(4)])
    for block in blocks:
        block.compile()
    train(blocks, [torch.randn(64, 8)])


@case("backward", "aten::div", "aten::mul", kernel="div", region="forward")
def checkpointed():
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def inner(self, h):
            return torch.sqrt(h.square()).tanh()  # BUG

        def forward(self, x):
            return checkpoint(self.inner, self.fc(x), use_reentrant=False).sum()

    torch.manual_seed(0)
    model = Net()
    nn.init.zeros_(model.fc.bias)
    train(torch.compile(model), [torch.zeros(4, 8)])


@case("forward", "aten::log", kernel="log", region="loss")
def autograd_function():
    class Entropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, p):
            ctx.save_for_backward(p)
            return -(p * p.log())  # BUG

        @staticmethod
        def backward(ctx, g):
            (p,) = ctx.saved_tensors
            return -g * (p.log() + 1)

    @torch.compile
    def loss(x):
        return Entropy.apply(torch.relu(x)).sum()

    torch.manual_seed(0)
    loss(torch.randn(16, requires_grad=True)).backward()


@case("forward", "aten::log", kernel="log", region="score")
def inference_nan():
    @torch.compile
    def score(x):
        p = x / 3
        return (p.log() * 2).sum()  # BUG

    torch.manual_seed(0)
    with torch.no_grad():
        score(torch.randn(16)).item()


@case("forward", "aten::log", kernel="log", region="score")
def inference_neginf():
    @torch.compile
    def score(x):
        p = torch.relu(x) / 3
        return (p.log() * 2).sum()  # BUG

    torch.manual_seed(0)
    with torch.no_grad():
        score(torch.randn(16)).item()


@case("forward", "aten::mul", "aten::pow", "aten::square", kernel="mul", region="forward")
def autocast_bf16():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x):
            h = self.fc(x) * 1e25
            h = h * h  # BUG
            return torch.sigmoid(h - h.mean(-1, keepdim=True)).mean()

    torch.manual_seed(0)
    model = torch.compile(Net())
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(4, 16))
    loss.backward()


@case("forward", "aten::sqrt", kernel="sqrt", region="residue", replay="fused")
def compiled_only():
    """Finite without torch.compile: sin^2 + cos^2 rounds otherwise in vectorised code."""

    def residue(x, w):
        y = x * w
        s, c = torch.sin(y), torch.cos(y)
        return torch.sqrt(1.0000001 - (s * s + c * c)).sum()  # BUG

    compiled = torch.compile(residue)
    torch.manual_seed(0)
    w = torch.ones((), requires_grad=True)
    x = torch.rand(4_000_000) * 1000
    with torch.no_grad():
        finite = torch.sqrt(1.0000001 - (torch.sin(x) ** 2 + torch.cos(x) ** 2)).isfinite()
    compiled(x[finite].contiguous()[:2_000_000], w).backward()


# -- to stay silent


@clean
def clean_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 1))
    train(torch.compile(model), [torch.randn(8, 16) for _ in range(4)], lr=0.01)


@clean
def clean_mask_returned():
    @torch.compile
    def mask(n):
        return torch.full((n, n), float("-inf")).triu(1)

    @torch.compile
    def attend(x, m):
        return torch.softmax(x @ x.T + m, -1).sum()

    x = torch.randn(8, 4, requires_grad=True)
    for _ in range(3):
        attend(x, mask(8)).backward()


@clean
def clean_where_inside():
    @torch.compile
    def loss(x):
        return torch.where(x > 0, x.log(), torch.zeros_like(x)).sum()

    loss(torch.randn(100)).item()


@clean
def clean_scaler():
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    compiled = torch.compile(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(compiled(torch.randn(4, 8)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def clean_where_the_compiler_computes_less():
    """Without torch.compile these are infinite: Inductor takes x * 0 for 0, and keeps half precision in float32."""
    annulled = torch.compile(lambda x: torch.sum(x) * 0)
    assert annulled(torch.full((1000,), 3e38)).item() == 0
    cancelled = torch.compile(lambda x: (x * 300 - x * 300).sum())
    assert cancelled(torch.tensor([300.0, 2.0], dtype=torch.float16)).item() == 0
