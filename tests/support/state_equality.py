"""Whether two states of a training are the same."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.call_observation import bits


def same(a: Any, b: Any) -> bool:
    """Bit for bit, in nested containers."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and bits(a) == bits(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
