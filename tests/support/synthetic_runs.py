"""Runs without training: a loss that falls, noise of many families, and one failure put into it."""

from __future__ import annotations

import dataclasses

import numpy as np

from torchnan.diagnosis import Run, of_columns

CURVES = {
    "power": lambda t, n: 2 + 6 / (1 + t / 20) ** 0.6,
    "exponential": lambda t, n: 1 + 5 * np.exp(-6 * t / n),
    "straight": lambda t, n: 5 - 3 * t / n,
    "converged": lambda t, n: np.full(n, 1.5),
    "two_stages": lambda t, n: 2 + 4 / (1 + t / 30) - 1.0 * (t > n // 2),
}


def autoregressive(rng, n, share):
    noise = rng.normal(size=n) * (1 - share**2) ** 0.5
    for i in range(1, n):
        noise[i] += share * noise[i - 1]
    return noise


NOISES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "student_5": lambda rng, n: rng.standard_t(5, n) / 1.29,
    "laplace": lambda rng, n: rng.laplace(size=n) / 1.41,
    "exponential": lambda rng, n: rng.exponential(size=n) - 1,
    "lognormal": lambda rng, n: (rng.lognormal(0, 0.5, n) - 1.13) / 0.6,
    "autoregressive_50": lambda rng, n: autoregressive(rng, n, 0.5),
    "autoregressive_90": lambda rng, n: autoregressive(rng, n, 0.9),
    "shrinking": lambda rng, n: rng.normal(size=n) * np.linspace(2, 0.3, n),
    "growing": lambda rng, n: rng.normal(size=n) * np.linspace(0.3, 2, n),
    "rounded": lambda rng, n: np.round(rng.normal(size=n), 1),
}

SCHEDULES = {
    "cosine": lambda t, n: 0.55 + 0.45 * np.cos(np.pi * t / n),
    "constant": lambda t, n: np.ones(n),
    "long_warmup": lambda t, n: np.minimum(1, (t + 1) / (0.6 * n)),
    "steps": lambda t, n: 0.3 ** (t // (n // 3 + 1)),
    "restarts": lambda t, n: 0.55 + 0.45 * np.cos(np.pi * (t % (n // 4)) / (n // 4)),
}


@dataclasses.dataclass
class Training:
    """Columns that a test changes before they become a run."""

    step: np.ndarray
    columns: dict[str, np.ndarray]
    digests: list[str]
    rng: np.random.Generator
    dtype: str | None = "float32"
    notes: dict = dataclasses.field(default_factory=dict)

    def run(self, every: int = 1) -> Run:
        columns = {name: values[::every] for name, values in self.columns.items()}
        return of_columns(self.step[::every], columns, batch_digest=self.digests[::every], dtype=self.dtype)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def raise_loss(self, at: int, by: float, *, until: int | None = None) -> None:
        self["loss"][at:until] += by

    def drop(self, *names: str) -> Training:
        for name in names:
            del self.columns[name]
        return self


def training(
    seed, *, steps=600, noise="normal", curve="power", schedule="cosine", size=0.05, dtype="float32"
) -> Training:
    """A healthy one.

    Args:
        size: of the noise, as a standard deviation; the loss is between 8 and 1.
    """
    rng = np.random.default_rng(seed)
    t = np.arange(steps)
    loss = np.abs(CURVES[curve](t, steps) + size * NOISES[noise](rng, steps))
    columns = {
        "loss": loss,
        "grad_norm": np.exp(0.25 * rng.normal(size=steps)) * (0.5 + 1 / (1 + t / 50)),
        "lr": 1e-3 * np.minimum(1, (t + 1) / 20) * SCHEDULES[schedule](t, steps),
        "weight_norm": 20 * (1 + 0.3 * t / steps),
    }
    digests = [f"{bits:016x}" for bits in rng.integers(2**63, size=steps)]
    return Training(t, columns, digests, rng, dtype)


def with_scaler(made: Training, *, scale: float = 65536.0, growth: int = 200, overflow_at=()) -> Training:
    """float16 with a dynamic loss scale: it halves after the given steps, and doubles after as many good ones."""
    made.dtype = "float16"
    scales, good = [], 0
    for step in made.step:
        scales.append(scale)
        if step in overflow_at:
            made["grad_norm"][step] = np.inf
            scale, good = scale / 2, 0
        else:
            good += 1
            scale, good = (scale * 2, 0) if good == growth else (scale, good)
    made.columns["loss_scale"] = np.array(scales)
    return made
