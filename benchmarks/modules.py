"""The price of detect() for a model of many modules: of a healthy step, and of a step that turns bad. CPU only.

    python -m benchmarks.modules [--modules 10000] [--rounds 7] [--threads N]

Every row runs once a round, in random order, and a ratio is taken within a round; "off again (A/A)" times the same
thing twice. A bad step is the first of its session, after a healthy one. Its loss, each weight or each gradient is NaN.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import warnings
from collections.abc import Callable

import torch
from torch import nn

import torchnan
from benchmarks import clock, tables
from benchmarks.timing import measure, ratio

OFF, OFF_AGAIN, HEALTHY = "off", "off again (A/A)", "detect()"


class Block(nn.Module):
    """Three modules with the container that holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.tanh = nn.Linear(8, 8), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.tanh(self.linear(x)) * 0.01
        return y


class Training:
    """Steps of a model, each of which a fault can turn bad."""

    def __init__(self, modules: int) -> None:
        self.model = nn.Sequential(*(Block() for _ in range(modules // 3)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(16, 8)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}

    def step(self, fault: str = "") -> None:
        self.optimizer.zero_grad()
        y = self.model(self.x)
        if fault == "loss":
            y = y + (y.detach() * 0 - 1).log()
        y.square().mean().backward()
        if fault == "gradients":
            for parameter in self.model.parameters():
                parameter.grad = (torch.zeros_like(parameter) - 1).log()
        self.optimizer.step()

    def time(self, fault: str) -> float:
        """Returns the seconds of a step after a healthy one, and restores the weights."""
        seconds = 0.0
        for kind in ("", fault):  # one line, as in a loop of training: its call sites are known in the second step
            if kind == "weights":
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        parameter.fill_(float("nan"))
            start = clock.seconds()
            self.step(kind)
            seconds = clock.seconds() - start
        self.model.load_state_dict(self.start)
        return seconds

    def time_detected(self, fault: str) -> float:
        """Returns the same under detect()."""
        with torchnan.detect(action="log"):
            return self.time(fault)


def timers(training: Training) -> dict[str, Callable[[], float]]:
    """How to time each row."""
    rows = {OFF: functools.partial(training.time, ""), OFF_AGAIN: functools.partial(training.time, "")}
    for row, fault in {HEALTHY: "", **{f"NaN {name}": name for name in ("loss", "weights", "gradients")}}.items():
        rows[row] = functools.partial(training.time_detected, fault)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modules", description=__doc__.splitlines()[0])
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    training = Training(given.modules)
    times = measure(timers(training), given.rounds)
    print(f"{tables.machine(given.threads)}; {sum(1 for _ in training.model.modules())} modules")
    print(f"plain step {statistics.median(times[OFF]) * 1e3:.0f} ms; ratios to it, median (95 % interval)")
    for row in list(times)[1:]:
        price = ratio(times[row], times[OFF])
        print(f"{row:<18}{price.median:>7.3f} ({price.low:.3f}-{price.high:.3f})")


if __name__ == "__main__":
    main()
