"""Trains attention with a new mask of -inf in each layer, and prints the size of glibc's heap in bytes.

``python masked_attention.py on|off``
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

import torch

import torchnan

LAYERS, WIDTH, STEPS = 12, 64, 40


class Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of <malloc.h>."""

    _fields_ = [("arena", ctypes.c_size_t), ("others", ctypes.c_size_t * 9)]


def heap_bytes() -> int:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    return mallinfo2().arena


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
    print(heap_bytes())
