"""Trains attention with a new mask of -inf in each layer, and prints the size of glibc's heap in bytes.

``python -m tests.guarantees.programs.masked_attention on|off``
"""

from __future__ import annotations

import contextlib
import sys

import torch

import torchnan
from benchmarks.allocator import heap

LAYERS, WIDTH, STEPS = 12, 64, 40


def attend(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        mask = torch.full((x.size(-2), x.size(-2)), -torch.inf).triu(1)
        query = x @ weight
        x = x + torch.softmax(query @ query.transpose(-1, -2) * 0.1 + mask, -1) @ query
    return x


def train() -> None:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.02) for _ in range(LAYERS)]
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    for step in range(STEPS):
        tokens = 128 + step * 37 % 128  # another size each step, so that freed blocks have to be joined
        optimizer.zero_grad()
        attend(torch.randn(16, tokens, WIDTH), weights).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    with torchnan.detect() if sys.argv[1] == "on" else contextlib.nullcontext():
        train()
    print(heap().arena)
