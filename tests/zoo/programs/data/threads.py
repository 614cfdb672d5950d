"""Bugs in worker threads."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, run_threads, track


@case(
    "replica-empty-shard",
    "data parallel by threads: the last replica gets no valid token and its mean is NaN",
    "",
    "threads",
    "nan",
    ["mean"],
    module="head",
    notes="the gradients are summed by the main thread",
)
def replica_empty_shard():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, h, valid):
            return self.fc(h)[valid].mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(2, 3)
            self.head = Head()

        def forward(self, x, valid):
            return self.head(torch.tanh(self.body(x)), valid)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    shards = [(torch.randn(2, 2), torch.tensor([True, True])), (torch.randn(2, 2), torch.tensor([False, False]))]

    def worker(x, valid):
        def run():
            loss = net(x, valid)
            return loss, torch.autograd.grad(loss, list(net.parameters()))

        return run

    results = run_threads(*[worker(*s) for s in shards])
    for i, p in enumerate(net.parameters()):
        p.grad = sum(g[i] for _, g in results) / len(results)
    opt.step()
    return net.body.weight, results[1][0]


@case(
    "producer-thread-unit-norm",
    "a prefetch thread normalises embeddings to unit length; one document is empty",
    "",
    "threads",
    "nan",
    ["div"],
    module=None,
    phase="data",
    step=2,
    notes="made in the producer, first read by the trainer",
)
def producer_thread_unit_norm():
    docs = [torch.rand(2, 3), torch.stack([torch.rand(3), torch.zeros(3)]), torch.rand(2, 3)]
    net = track(nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(-1)))
    opt = torch.optim.Adam(net.parameters())
    for k, doc in enumerate(docs, 1):
        mark_step(k)
        queue = []

        def produce():
            queue.append(doc / doc.norm(dim=1, keepdim=True))  # ORIGIN

        run_threads(produce)
        loss = F.nll_loss(net(queue.pop()), torch.tensor([0, 1]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "producer-thread-nan-file",
    "a loader thread reads a corrupted shard; the trainer's first layer is the first to use it",
    "",
    "threads",
    "nan",
    origin="input",
    name="x",
    module="0",
    step=2,
)
def producer_thread_nan_file():
    shards = [np.ones((2, 2), dtype=np.float32), np.array([[1, 2], [np.nan, 0]], dtype=np.float32)]
    net = track(nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()))
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    for k in (1, 2):
        mark_step(k)
        (x,) = run_threads(lambda: torch.as_tensor(shards[k - 1]).clone())  # ORIGIN
        loss = F.mse_loss(net(x), torch.zeros(2, 2))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net[0].weight, loss


@case(
    "hogwild-shared-divergence",
    "two Hogwild workers step the same weights with a learning rate that only one can bear",
    "",
    "threads",
    "inf",
    "pow",
    module="loss",
    step=3,
)
def hogwild_shared_divergence():
    class Mse(nn.Module):
        def forward(self, a, b):
            return ((a - b) ** 2).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(1, 1)
            self.loss = Mse()

        def forward(self, x, y):
            return self.loss(self.lin(x), y)

    net = track(Net())
    x = torch.linspace(-3, 3, 8)[:, None]

    def worker():
        opt = torch.optim.SGD(net.parameters(), lr=0.9)
        for _ in range(4):
            opt.zero_grad()
            loss = net(x, 10 * x)
            loss.backward()
            opt.step()
        return loss.detach()

    for k in range(1, 31):
        mark_step(k)
        out = run_threads(worker, worker)
    return out[1], net.lin.weight
