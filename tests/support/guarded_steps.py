"""A small training under a StepGuard, for the tests around it."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

import torchnan

NAN = math.nan


class Net(nn.Module):
    """Has everything that a step changes: weights, running statistics, random numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x)).relu())).squeeze(1)


def step_of(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def batch_of(seed, rows=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randn(rows, generator=generator)


def bad_batch(seed=0):
    x, y = batch_of(seed)
    x[2, 1] = NAN
    return x, y


class Training:
    """A model, its AdamW, and a guard."""

    def __init__(self, step_fn=step_of, model=None, **options):
        torch.manual_seed(0)
        self.model = model or Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.guard = torchnan.StepGuard(self.model, self.optimizer, step_fn, **options)

    def state(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
