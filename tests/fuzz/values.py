"""Finite input tensors, up to the ends of what their dtype holds."""

from __future__ import annotations

import torch

KINDS = (
    *("normal", "normal", "normal", "normal", "normal", "normal"),
    *("positive", "middling", "large", "huge", "tiny", "small", "zero", "one", "mixed", "edge", "spike"),
)


def tensor(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, kind: str = "normal") -> torch.Tensor:
    """Returns a tensor of values of a kind; none is infinite."""
    generator = torch.Generator().manual_seed(seed)
    top = torch.finfo(dtype).max
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    powers = {"large": 0.75, "middling": 0.5}
    scales = {"tiny": 1e-40, "small": 1e-20, "zero": 0.0}
    if kind in powers:
        x = x * top ** powers[kind]
    elif kind in scales:
        x = x * scales[kind]
    elif kind == "huge":
        x = x.clamp(-3, 3) * top * 0.3
    elif kind == "one":
        x = torch.ones_like(x)
    elif kind == "positive":
        x = x.abs()
    elif kind == "mixed":
        exponent = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        x = x.sign() * 10 ** (exponent * (torch.log10(torch.tensor(top, dtype=torch.float64)) - 0.6))
    elif kind == "edge":
        x = x.sign() * top * (1 - 0.01 * torch.rand(shape, generator=generator, dtype=torch.float64))
    elif kind == "spike":
        x = torch.where(torch.rand(shape, generator=generator) < 0.001, x.sign() * top * 0.9, x)
    return x.clamp(-top, top).to(dtype).clamp(-top, top)
