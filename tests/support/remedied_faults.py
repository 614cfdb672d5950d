"""Faults planted at random places of small models, each with a bad sample that sets it off."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH = 6, 8

Fault = Callable[[torch.Tensor], torch.Tensor]


def softmax_that_rounds_to_zero(h):
    p = torch.softmax(h, dim=-1)
    return h + 0.01 * torch.log(p).mean(-1, keepdim=True)


def sigmoid_that_rounds_to_one(h):
    p = h.sigmoid()
    penalty = -(1 - p).log()
    return h + 0.01 * penalty


def unit_vectors(h):
    return h / h.norm(dim=-1, keepdim=True)


def unit_vectors_without_epsilon(h):
    return F.normalize(h, dim=-1, eps=0.0)


def length_by_hand(h):
    length = h.square().sum(-1, keepdim=True).sqrt()
    return h + length


def norm_by_hand(h):
    scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True))
    return h * scale


def softmax_by_hand(h):
    e = (20 * h).exp()
    return h + e / e.sum(-1, keepdim=True)


def learned_variance(h):
    return h + 1e-3 * torch.exp(10 * h)


def in_place(h):
    total = h.abs().sum(-1, keepdim=True)
    share = h.clone()
    share.div_(total)
    return share


def deviation_of_one(h):
    return h + h[:, :1].std(1, keepdim=True)


def masked_row(h):
    scores = (h @ h.T).masked_fill((h.abs().sum(-1) == 0)[:, None], float("-inf"))
    return scores.softmax(-1) @ h


def mask_times_infinity(h):
    dead = (h.abs().sum(-1, keepdim=True) == 0).float()
    return (h + dead * float("-inf")).softmax(-1)


def mean_over_a_selection(h):
    alive = h[h.abs() > 1e6]
    return h * 1e-3 + alive.mean()


def angle(h):
    cosine = F.cosine_similarity(h, h.detach(), dim=-1) * 1.0000002
    return h + cosine.acos()[:, None]


def fractional_power(h):
    return h + (h - 0.1) ** 0.5


def reciprocal(h):
    return 1.0 / h.sum(-1, keepdim=True) + h


def logarithm_of_a_count(h):
    return h + torch.log10(h.abs().sum(-1, keepdim=True))


def length_of_two(h):
    return h + torch.hypot(h[:, :1], h[:, 1:2])


def layer_norm_without_epsilon(h):
    return F.layer_norm(h, (h.shape[-1],), eps=0.0)


def half_precision(h):
    half = (h * 50).half()
    return h + (half @ half.T).float().mean(-1, keepdim=True).tanh()


def squares(h):
    return h + 1e-40 * (h * 1e15).square().square().mean(-1, keepdim=True)


def log_of_one_plus(h):
    return h + torch.log1p(-torch.sigmoid(h))


def logit_of_a_probability(h):
    return h + 0.01 * torch.logit(h.sigmoid())


# What makes the bad row of the hidden state: it is multiplied by this.
ZERO, LARGE = 0.0, 60.0
FAULTS: dict[Fault, float] = {
    softmax_that_rounds_to_zero: 400.0,
    sigmoid_that_rounds_to_one: LARGE,
    unit_vectors: ZERO,
    unit_vectors_without_epsilon: ZERO,
    length_by_hand: ZERO,
    norm_by_hand: ZERO,
    softmax_by_hand: LARGE,
    learned_variance: LARGE,
    in_place: ZERO,
    deviation_of_one: ZERO,
    masked_row: ZERO,
    mask_times_infinity: ZERO,
    mean_over_a_selection: ZERO,
    angle: ZERO,
    fractional_power: ZERO,
    reciprocal: ZERO,
    logarithm_of_a_count: ZERO,
    length_of_two: ZERO,
    layer_norm_without_epsilon: ZERO,
    half_precision: LARGE,
    squares: LARGE,
    log_of_one_plus: LARGE,
    logit_of_a_probability: LARGE,
}


class Planted(nn.Module):
    """Passes its input on; the fault of a model computes with it, once ``bad`` rows are among it."""

    def __init__(self, fault: Fault, factor: float) -> None:
        super().__init__()
        self.fault = fault
        self.factor = factor

    def forward(self, h: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
        if not bad.any():
            return h
        shape = h.shape
        h = h.reshape(shape[0], -1)[:, :WIDTH]
        spiked = torch.where(bad[:, None], (h + h.detach().sign()) * self.factor, h)
        changed = self.fault(spiked)
        return changed[:, :1].reshape(-1, *[1] * (len(shape) - 1)).expand(shape) * 1e-2 + h.mean()


class MLP(nn.Module):
    PLACES = 2

    def __init__(self, planted: nn.Module, place: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 1)
        self.planted, self.place = planted, place

    def forward(self, x, bad):
        for i, layer in enumerate(self.layers):
            x = x + layer(x).tanh()
            if i == self.place:
                x = self.planted(x, bad)
        return self.head(x).square().mean()


class GPT(nn.Module):
    PLACES = 2

    def __init__(self, planted: nn.Module, place: int) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, 16)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)]
        )
        self.head = nn.Linear(16, 5)
        self.planted, self.place = planted, place

    def forward(self, x, bad):
        h = self.embed(x)[:, None, :].expand(-1, 4, -1)
        for i, block in enumerate(self.blocks):
            h = block(h)
            if i == self.place:
                h = h + self.planted(h, bad)
        return F.cross_entropy(self.head(h).flatten(0, 1), torch.zeros(len(x) * 4, dtype=torch.long))


class CNN(nn.Module):
    PLACES = 2

    def __init__(self, planted: nn.Module, place: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)
        self.planted, self.place = planted, place

    def forward(self, x, bad):
        h = self.norm(self.first(x.reshape(-1, 1, 2, WIDTH // 2)))
        if self.place == 0:
            h = self.planted(h, bad)
        h = self.second(h.relu() + 0.1)
        if self.place == 1:
            h = self.planted(h, bad)
        return F.cross_entropy(self.head(h.mean((2, 3))), torch.zeros(len(x), dtype=torch.long))


class VAE(nn.Module):
    PLACES = 2

    def __init__(self, planted: nn.Module, place: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.planted, self.place = planted, place

    def forward(self, x, bad):
        mean, logvar = self.encode(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        if self.place == 0:
            z = self.planted(z, bad)
        decoded = self.decode(z)
        if self.place == 1:
            decoded = decoded + self.planted(decoded, bad)
        kl = 0.5 * (logvar.exp() + mean.square() - 1 - logvar).mean()
        return (decoded - x).square().mean() + kl


@dataclasses.dataclass(frozen=True)
class Program:
    """A model with a fault."""

    kind: type[nn.Module]
    fault: Fault
    place: int
    seed: int

    def build(self) -> nn.Module:
        """Returns the model as it is before the first step."""
        torch.manual_seed(self.seed)
        return self.kind(Planted(self.fault, FAULTS[self.fault]), self.place)

    def batch(self, step: int, is_bad: bool) -> dict[str, torch.Tensor]:
        """Returns the batch of a step; one of its rows sets off the fault if it is bad."""
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        bad = torch.zeros(ROWS, dtype=torch.bool)
        bad[self.seed % ROWS] = is_bad
        return {"x": torch.randn(ROWS, WIDTH, generator=generator), "bad": bad}


def step_of(model, batch):
    return model(batch["x"], batch["bad"])


def program(seed: int) -> Program:
    """Returns the program of a seed; every fault comes once before one comes again."""
    draw = random.Random(seed)
    kinds, faults = (MLP, GPT, CNN, VAE), list(FAULTS)
    return Program(kinds[seed % 4], faults[seed % len(faults)], draw.randrange(2), seed)
