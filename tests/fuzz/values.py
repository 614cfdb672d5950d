"""Input tensors, up to the ends of what their dtype holds."""

from __future__ import annotations

import math

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


# Values that tempt a rule: all at one scale, with a few exceptions.
FORMS = (
    *("normal", "normal", "normal", "normal", "constant", "positive", "signs", "single", "near", "next"),
    *("outlier", "sparse", "rows", "mixed", "top"),
)


def scales(dtype: torch.dtype) -> list[float]:
    """Returns the magnitudes at which an operator may overflow, underflow, or lose bits."""
    info = torch.finfo(dtype)
    top, least, subnormal = math.log2(info.max), math.log2(info.tiny), math.log2(info.tiny * info.eps)
    powers = [*[0.0] * 4, 1, -1, top - 1, top - 2, top - 4, top / 2, top / 2 - 2, top / 2 - 6, top / 3, top / 4]
    powers += [least, least + 2, least / 2, least / 3, subnormal, subnormal + 3, 10, 20, -20, 40, 49]
    return [2.0**power for power in powers if power < top]


def scaled(seed: int, shape: tuple[int, ...], dtype: torch.dtype, scale: float, form: str) -> torch.Tensor:
    """Returns a tensor with finite values, except for the -inf of the form "masked"."""
    generator = torch.Generator().manual_seed(seed)
    info = torch.finfo(dtype)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    draw = torch.rand(shape, generator=generator)
    signs = torch.where(x < 0, -1.0, 1.0).double()
    if form == "constant":
        y = torch.full_like(x, scale)
    elif form == "positive":
        y = x.abs() * scale
    elif form == "signs":
        y = signs * scale
    elif form == "single":
        y = (torch.arange(x.numel()).view(shape) == seed % max(1, x.numel())) * torch.tensor(scale, dtype=x.dtype)
    elif form == "outlier":  # the mean is far from one element
        y = torch.full_like(x, scale)
        y.view(-1)[seed % max(1, x.numel()) :][:1] = -scale
    elif form == "near":
        y = scale * (1 + x * 2.0 ** -(1 + seed % 30))
    elif form == "next":
        y = scale * (1 + signs * info.eps * (0.5, 1.0, 2.0)[seed % 3])
    elif form == "sparse":
        y = (draw < 0.1) * x * scale
    elif form == "rows":
        y = x * 10.0 ** torch.randint(-20, 15, (*shape[:1], *[1] * (x.dim() - 1)), generator=generator).double()
    elif form == "mixed":
        y = x * 10.0 ** torch.randint(-30, 20, shape, generator=generator).double()
    elif form == "top":
        y = signs * info.max
    else:
        y = x * scale
    y = y.clamp(-info.max, info.max).to(dtype).clamp(-info.max, info.max)
    return y.masked_fill(draw < 0.4, -math.inf) if form == "masked" else y
