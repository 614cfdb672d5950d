"""Values that are gone before they matter."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track

_MASKS = {}


@case(
    "recursive-closure-memo",
    "a recursive closure over a table with log(0): dead when the function returns",
    "",
    "clean-lifetime",
    "clean",
    notes="the closure refers to itself, so the table is garbage that only the cyclic collector frees",
)
def recursive_closure_memo():
    rules = torch.tensor([[0.5, 0.0], [0.25, 0.25]])
    table = rules.log()
    words = track(nn.Embedding(4, 2))
    leaf = F.log_softmax(words(torch.tensor([0, 1, 2])), -1)

    def span(i, j):
        if j - i == 1:
            return leaf[i]
        parts = [torch.logsumexp(span(i, k) + span(k, j) + table, 1) for k in range(i + 1, j)]
        return torch.logsumexp(torch.stack(parts), 0)

    total = torch.logsumexp(span(0, 3), 0)
    (-total).backward()
    return total, words.weight.grad


@case(
    "kept-exception",
    "a failed attempt is remembered as an exception; its traceback keeps the failed tensors",
    "",
    "clean-lifetime",
    "clean",
    notes="the exception and the frame refer to each other: garbage, not something that the program holds",
)
def kept_exception():
    net = track(nn.Linear(2, 2))
    x = net(torch.randn(3, 2))

    def solve(a, jitter):
        scaled = a / jitter
        if not torch.isfinite(scaled).all():
            raise ValueError("jitter %g is too small" % jitter)
        return torch.linalg.cholesky(scaled)

    last = None
    for jitter in (0.0, 1.0):
        try:
            chol = solve(x.t() @ x + torch.eye(2), jitter)
            break
        except ValueError as err:
            last = err
    assert "too small" in str(last)
    chol.sum().backward()
    return chol, net.weight.grad


@case(
    "scheduler-cycle-skipped-last",
    "a cosine schedule, and a last batch whose gradients are bad and not used",
    "",
    "clean-lifetime",
    "clean",
    notes="nothing but garbage (optimizer and scheduler refer to each other) holds the gradients at the end",
)
def scheduler_cycle_skipped_last():
    def train():
        net = track(nn.Linear(2, 1, bias=False))
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)
        for k in range(1, 5):
            mark_step(k)
            x = torch.randn(3, 2) if k < 4 else torch.zeros(3, 2)
            loss = net(x).abs().sqrt().mean()
            opt.zero_grad()
            loss.backward()
            if torch.isfinite(net.weight.grad).all():
                opt.step()
            sched.step()
        return net.weight.detach().clone(), loss.detach()

    return train()


@case(
    "model-outlives-the-block",
    "a model whose mask buffer is log(0/1) is stored in a registry and used again later",
    "",
    "clean-lifetime",
    "clean",
    notes="what every training script does: the model still exists when detection ends",
)
def model_outlives_the_block():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.register_buffer("bias", torch.tril(torch.ones(4, 4)).log(), persistent=False)

        def forward(self, x):
            return (self.lin(x) @ x.t() + self.bias).softmax(-1) @ x

    net = _MASKS.setdefault("model", track(Attn()))
    out = net(torch.randn(4, 3))
    out.sum().backward()
    return out, net.lin.weight.grad


@case(
    "class-closure-mask",
    "a module class defined in a function; its forward closes over a log(0/1) mask",
    "",
    "clean-lifetime",
    "clean",
    notes="every Python class is part of a reference cycle: the mask is garbage until the collector runs",
)
def class_closure_mask():
    mask = torch.tril(torch.ones(4, 4)).log()

    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            return (self.lin(x) @ x.t() + mask).softmax(-1) @ x

    net = track(Attn())
    out = net(torch.randn(4, 3))
    out.sum().backward()
    return out, net.lin.weight.grad


@case(
    "hook-records-gradients",
    "a debugging hook stores intermediate gradients, one of them inf, before a mask drops it",
    "",
    "clean-lifetime",
    "clean",
    debatable="the record of a hook that belongs to the graph of a returned loss is, strictly, still held",
)
def hook_records_gradients():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.seen = nn.Linear(3, 4), {}

        def forward(self, x):
            h = F.relu(self.lin(x))
            root = h.sqrt()
            if root.requires_grad:
                h.register_hook(lambda g: self.seen.__setitem__("h", g))
                h.register_hook(lambda g: torch.where(torch.isfinite(g), g, torch.zeros(())))
            return root.sum()

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(5, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
    worst = torch.nan_to_num(net.seen["h"], posinf=0.0, neginf=0.0).abs().max()
    return loss, worst, net.lin.weight
