"""Backward passes that recompute the forward pass."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from tests.zoo.framework import alt, case, mark_step, track


@case(
    "checkpoint-reentrant-norm",
    "reentrant checkpoint around a block whose distance is 0: the recomputed graph gives inf",
    "",
    "checkpoint",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="enc.0",
)
def checkpoint_reentrant_norm():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            h = self.fc(x)
            d = (h - h.detach()).pow(2).sum(-1)
            return h + torch.sqrt(d)[:, None]  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.ModuleList([Block()])

        def forward(self, x):
            for block in self.enc:
                x = checkpoint(block, x, use_reentrant=True)
            return x

    net = track(Net())
    y = net(torch.randn(2, 3, requires_grad=True))
    y.sum().backward()
    return y, net.enc[0].fc.weight.grad


@case(
    "checkpoint-noreentrant-rsqrt",
    "non-reentrant checkpoint of the second stage of a Sequential",
    "",
    "checkpoint",
    "nan",
    ["pow", "mul"],
    node="RsqrtBackward0",
    module="stages.1.norm",
)
def checkpoint_noreentrant_rsqrt():
    class Norm(nn.Module):
        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-30)  # ORIGIN

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))
            self.norm = Norm()

        def forward(self, x):
            return self.norm(self.shift * x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([nn.Linear(3, 3), Stage()])

        def forward(self, x):
            for stage in self.stages:
                x = checkpoint(stage, x, use_reentrant=False)
            return x

    net = track(Net())
    y = net(torch.randn(2, 3))
    (y * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    return y, net.stages[1].shift.grad


@case(
    "checkpoint-sequential-lambda",
    "checkpoint_sequential over plain functions, reentrant, no module anywhere",
    "",
    "checkpoint",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
)
def checkpoint_sequential_lambda():
    def lift(x):
        return x * 2.0

    def gate(x):
        return torch.where(x > 0, torch.sqrt(x), x)  # ORIGIN

    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    y = checkpoint(lambda t: gate(lift(t)), x, use_reentrant=True, preserve_rng_state=False)
    y.sum().backward()
    return y, x.grad


@case(
    "checkpoint-reentrant-nested-module",
    "reentrant checkpoint of a bound method two levels down, whole training step",
    "",
    "checkpoint",
    "nan",
    ["div", "mul"],
    node="DivBackward0",
    module="encoder.layers.1.pool",
    step=2,
    also=[alt("forward", "div")],
)
def checkpoint_reentrant_nested_module():
    class Pool(nn.Module):
        def forward(self, x, mask):
            mean = (x * mask).sum(1) / mask.sum(1)  # ORIGIN
            return torch.where(mask.sum(1) > 0, mean, torch.zeros_like(mean))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.pool = Pool()

        def forward(self, x, mask):
            h = self.fc(x)
            return h + self.pool(h, mask)[:, None]

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x, mask):
            x = self.layers[0](x, torch.ones_like(mask))
            return checkpoint(self.layers[1].forward, x, mask, use_reentrant=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def forward(self, x, mask):
            return self.encoder(x, mask)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loss = None
    for k in (1, 2):
        mark_step(k)
        mask = torch.ones(2, 3, 1)
        if k == 2:
            mask[1] = 0.0
        opt.zero_grad()
        loss = net(torch.randn(2, 3, 2), mask).pow(2).mean()
        loss.backward()
        opt.step()
    return loss, net.encoder.layers[1].fc.weight.grad, net.encoder.layers[0].fc.weight
