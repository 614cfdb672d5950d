"""The purpose of a run: the setup of a small training and, by construction, the correct diagnosis."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.training.runs.small_training import Batch, Setup
from tests.training.runs.synthetic_text import Language


@dataclass(frozen=True)
class Truth:
    """The right answer. ``first`` and ``last`` are the steps between which the trouble begins, both included.

    ``causes`` are those that are right; none means that the decision tree does not ask for one.
    """

    kind: str
    causes: tuple[str, ...]
    first: int
    last: int
    why: str


HEALTHY = Truth("healthy", (), 0, 0, "nothing was done to it")


@dataclass(frozen=True)
class Plan:
    name: str
    seed: int
    setup: Setup
    truth: Truth


class Draw:
    """The random choices of a plan: a separate random generator, and an ordinary training to modify."""

    def __init__(self, name: str, seed: int, attempt: int = 0) -> None:
        self.name, self.seed = name, seed
        self.rng = np.random.default_rng([zlib.crc32(name.encode()), seed, attempt])

    def one_of(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def ratio(self, low: float, high: float) -> float:
        """Between both, evenly on a logarithmic scale."""
        return math.exp(self.between(math.log(low), math.log(high)))

    def step(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def language(self, **given: Any) -> Language:
        usual = {"surprise": self.between(0.02, 0.3), "branches": self.one_of(1, 2, 4)}
        return Language.drawn(self.rng, **{**usual, **given})

    def setup(self, language: Language | None = None, **given: Any) -> Setup:
        """A training that goes well. Every part of it may be given."""
        language = language or self.language()
        optimizer = given.get("optimizer", self.one_of(*PEAKS))
        steps = given.get("steps", 450)
        peak, warmup = self.ratio(*PEAKS[optimizer]), self.step(10, 60)
        usual = {
            "seed": int(self.rng.integers(2**31)),
            "optimizer": optimizer,
            "rate": self.one_of(constant, cosine, linear)(peak, warmup, steps),
            "layers": self.one_of(1, 1, 2),
            "tokens": self.one_of(12, 16, 24),
            "decay": always(self.one_of(0.0, 0.01, 0.1)),
            "clip": self.one_of(1.0, 1.0, math.inf),
            "vocabulary": language.vocabulary,
            "steps": steps,
        }
        merged = {**usual, **given}
        merged.setdefault("batch", batches(language, self.rng, self.one_of(6, 8, 12), merged["tokens"]))
        return Setup(**merged)

    def failing(self, setup: Setup, truth: Truth) -> Plan:
        return Plan(self.name, self.seed, setup, truth)

    def healthy(self, setup: Setup) -> Plan:
        return Plan(self.name, self.seed, setup, HEALTHY)


# Learning rates with which a small GPT-2 learns well, by optimizer.
PEAKS = {
    "adamw": (2e-3, 8e-3),
    "adamw999": (2e-3, 8e-3),
    "adam": (2e-3, 6e-3),
    "nadam": (2e-3, 6e-3),
    "momentum": (0.05, 0.2),
    "rmsprop": (5e-4, 2e-3),
}

Rate = Callable[[int], float]


def always(value: float) -> Rate:
    return lambda step: value


def warmed_up(peak: float, warmup: int, after: Rate) -> Rate:
    """Linear from 0 to ``peak`` over ``warmup`` steps, then ``peak`` times ``after(step)``."""
    return lambda step: peak * ((step + 1) / warmup if step < warmup else after(step))


def constant(peak: float, warmup: int, steps: int) -> Rate:
    return warmed_up(peak, warmup, always(1.0))


def cosine(peak: float, warmup: int, steps: int, least: float = 0.1) -> Rate:
    def share(step: int) -> float:
        return least + (1 - least) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2

    return warmed_up(peak, warmup, share)


def linear(peak: float, warmup: int, steps: int) -> Rate:
    return warmed_up(peak, warmup, lambda step: 1 - 0.95 * (step - warmup) / (steps - warmup))


def batches(language: Language, rng: np.random.Generator, rows: int, tokens: int, **given: Any) -> Batch:
    """Fresh text at every step; the labels are the text itself."""

    def batch(step: int) -> Any:
        ids = language.rows(rng, rows, tokens, **given)
        return ids, ids

    return batch


def instead(usual: Batch, other: Batch, when: Callable[[int], bool]) -> Batch:
    return lambda step: other(step) if when(step) else usual(step)
