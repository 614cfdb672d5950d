"""Measures what a Monitor adds to the steps of a program's own loop: each of its options alone, and all together.

    python -m benchmarks.monitored_steps [--rounds 40] [--widths 256,1024]

The model is an MLP of four layers, 64 inputs and a batch of 128; its width determines the time of a step. A round times
a block of steps of each row, in random order, by one thread; "A/A" times the plain step twice. Each ratio is taken
within a round. Windows are full, and a block has all periodic work.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchnan
from benchmarks.timing import measure, ratio

BLOCK = 100  # steps; a multiple of what the Monitor counts by
PLAIN, AGAIN = "plain", "A/A"
QUIET: dict[str, Any] = {"live": False, "weights_every": 0}

# row -> options of the Monitor, whether it has a log, arguments of its step()
ROWS: dict[str, tuple[dict[str, Any], bool, tuple[str, ...]]] = {
    "loss, gradient norm, learning rate": (QUIET, False, ("loss", "grad_norm", "optimizer")),
    "log": (QUIET, True, ("loss",)),
    "digest of the batch": (QUIET, False, ("batch",)),
    "weights": ({"live": False}, False, ("optimizer",)),
    "live": ({"weights_every": 0}, False, ("loss", "grad_norm")),
    "all of it": ({}, True, ("loss", "grad_norm", "optimizer", "model", "batch")),
}


class Training:
    """Trains on made-up data.

    Args:
        width: of the hidden layers.
    """

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batches = [(torch.randn(128, 64), torch.randint(0, 10, (128,))) for _ in range(400)]
        self.steps = 0

    def step(self) -> dict[str, Any]:
        """Runs a step. Returns what a Monitor may be given."""
        batch = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss, "grad_norm": norm, "optimizer": self.optimizer, "model": self.model, "batch": batch}

    def timer(self, row: str) -> Callable[[], float]:
        """Returns a function that times a block of steps under a row of the table, in CPU time of its thread."""
        monitor, arguments = None, ()
        if row not in (PLAIN, AGAIN):
            options, has_log, arguments = ROWS[row]
            log = Path(tempfile.mkdtemp()) / "run.jsonl" if has_log else None
            monitor = torchnan.Monitor(log, **options)
            noise = (0.05 * torch.randn(1000)).tolist()
            for i in range(1000):
                given = {"loss": 2.3 + noise[i], "grad_norm": 1.0 + abs(noise[i]), "optimizer": self.optimizer}
                monitor.step(**{name: value for name, value in given.items() if name in arguments})

        def time_block() -> float:
            start = time.thread_time()
            for _ in range(BLOCK):
                given = self.step()
                if monitor is not None:
                    monitor.step(**{name: given[name] for name in arguments})
            return (time.thread_time() - start) / BLOCK

        return time_block


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitored_steps", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="6 or more (default: 40)")
    parser.add_argument("--widths", default="256,1024")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for width in map(int, given.widths.split(",")):
        training = Training(width)
        times = measure({row: training.timer(row) for row in (PLAIN, AGAIN, *ROWS)}, given.rounds)
        print(f"width {width}: a plain step of {1e3 * min(times[PLAIN]):.2f} ms")
        for row in (AGAIN, *ROWS):
            found = ratio(times[row], times[PLAIN])
            print(f"  {row:<36} {found.median:.3f} ({found.low:.3f}-{found.high:.3f}), minima {found.of_minima:.3f}")


if __name__ == "__main__":
    main()
