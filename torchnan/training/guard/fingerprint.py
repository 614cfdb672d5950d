"""Fingerprints of named tensors, which show ranks that they hold the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from torchnan.detection import shards
from torchnan.detection.pause import detection_paused

_CHUNK = 2**20  # elements hashed at a time, which bounds the memory
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTORS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # odd, as in splitmix64


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> int:
    """Returns 62 bits over names, dtypes, shapes and all bits; for sharded tensors, over this rank's shards.

    Unlike :func:`torch.hash_tensor`, which is an exclusive or, it depends on the position of each element.
    """
    with detection_paused(), torch.no_grad():
        parts = [(name, *_described(shards.local(tensor.detach()))) for name, tensor in tensors.items()]
    return int.from_bytes(hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 2


def _described(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], int]:
    flat = tensor.contiguous().view(-1)
    words = (torch.view_as_real(flat).view(-1) if flat.is_complex() else flat).view(
        _WORDS[flat.element_size() // (2 if flat.is_complex() else 1)]
    )
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _CHUNK):
        total += _mixed(words[start : start + _CHUNK].to(torch.int64), start).sum()
    return str(tensor.dtype), tuple(tensor.shape), int(total)


def _mixed(words: torch.Tensor, start: int) -> torch.Tensor:
    """Returns 64 well mixed bits of each word and its position; integers wrap around."""
    position = torch.arange(start + 1, start + 1 + words.numel(), dtype=torch.int64, device=words.device)
    mixed = words + position * _FACTORS[0]
    for factor, shift in zip(_FACTORS[1:], (30, 27), strict=True):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed ^ (mixed >> 31)
