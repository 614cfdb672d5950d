"""A small training that goes bad in several places, and continues; returns its results, bit for bit."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from torchnan.detection.errors import DetectorWarning

MAKERS = (torch.log, torch.sqrt, torch.rsqrt, torch.acos, torch.log2, torch.log10)
FINDINGS = len(MAKERS) + 3  # and a loss, a gradient and a weight


class Branch(nn.Module):
    """Makes a NaN of its argument, in a different way for each step."""

    def forward(self, x, step):
        return MAKERS[step](-x.abs() - 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.out = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.branch = Branch()

    def forward(self, x):
        return self.out(self.norm(self.layer(x)).tanh())


def train(make_model=Net) -> list[bytes]:
    """Runs steps forward, backward and in the optimizer; after each, something goes bad beside them and is read."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # hundreds of small trainings would wait for their threads
    try:
        return _train(make_model)
    finally:
        torch.set_num_threads(threads)


def _train(make_model) -> list[bytes]:
    torch.manual_seed(0)
    model = make_model()
    state = [*model.parameters(), *model.buffers()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for step in range(len(MAKERS)):
        x = torch.randn(8, 4)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(model.branch(x, step).sum().item())
    seen.append(_bad_root())
    seen.append(_bad_gradient())
    seen.append(_bad_weight())
    return [bits(torch.tensor(seen)), *map(bits, state), *map(bits, _tensors(optimizer))]


def _bad_root() -> float:
    leaf = torch.ones(3, requires_grad=True)
    (leaf * float("nan")).sum().backward()
    return leaf.grad.sum().item()


def _bad_gradient() -> float:
    leaf = torch.zeros(3, requires_grad=True)
    leaf.sqrt().sum().backward()
    torch.optim.SGD([leaf], lr=0.1).step()
    return leaf.detach().sum().item()


def _bad_weight() -> float:
    weight = nn.Parameter(torch.ones(3))
    with torch.no_grad():
        weight.copy_(torch.asin(torch.full((3,), 2.0)))
    return nn.functional.linear(torch.ones(1, 3), weight).item()


def _tensors(optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]


def bits(tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def own_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    """The warnings about failures inside torchnan."""
    return [str(one.message) for one in caught if issubclass(one.category, DetectorWarning)]
