"""A matrix product with a known result, whose bits reveal a device that silently computes wrong results."""

from __future__ import annotations

import hashlib

import torch

_SIZE = 256
_ROUNDS = 4


def wrong_product(device: torch.device) -> str | None:
    """Multiplies matrices of small integers, exact in every order of summation and in TF32; returns the error, if any.

    The expected result is computed in int64 on the CPU, by different code than floating-point products.
    """
    for seed in range(_ROUNDS):
        left, right = _integers(17, seed), _integers(13, seed + 1)
        expected = (left @ right).float()
        found = (left.float().to(device) @ right.float().to(device)).cpu()
        wrong = (found != expected).nonzero()
        if len(wrong):
            i, j = wrong[0].tolist()
            return (
                f"{device} computes wrong: {len(wrong)} of {_SIZE * _SIZE} elements of a product of integers, the "
                f"first {found[i, j].item():g} instead of {expected[i, j].item():g}"
            )
    return None


def digest_of_product(device: torch.device) -> str:
    """Returns a digest of the bits of a product whose rounding depends on the device; equal devices give equal
    digests."""
    left, right = (_integers(8191, seed).float() / 8191 for seed in (1, 2))
    bits = (left.to(device) @ right.to(device)).cpu().view(torch.int32).flatten().tolist()
    return hashlib.sha256(repr(bits).encode()).hexdigest()[:16]


def _integers(modulus: int, seed: int) -> torch.Tensor:
    """Returns a ``[256, 256]`` int64 matrix without the user's random numbers; between ``-modulus / 2`` and that."""
    rows, columns = torch.arange(_SIZE, device="cpu").view(-1, 1), torch.arange(_SIZE, device="cpu")
    return (rows * rows * 31 + columns * (7 + seed) + rows * columns * 3) % modulus - modulus // 2
