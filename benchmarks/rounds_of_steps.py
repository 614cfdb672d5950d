"""The command line of measurements that time steps of several workloads in rounds."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks import workloads
from benchmarks.workloads import Workload


class Measurement(NamedTuple):
    """What to measure.

    Attributes:
        steps: the keys of the workloads.
        rounds: of each.
        threads: of PyTorch.
    """

    steps: list[str]
    rounds: int
    threads: int

    def workloads(self) -> Iterator[Workload]:
        """Makes one workload after the other."""
        return (workloads.ALL[key]() for key in self.steps)


def parse(module: str, description: str, steps: str) -> Measurement:
    """Parses the command line of ``python -m benchmarks.MODULE``, and sets seed and threads."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    parser.add_argument("--steps", default=steps)
    parser.add_argument("--rounds", type=int, default=15, help="6 or more (default: 15)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    return Measurement(given.steps.split(","), given.rounds, given.threads)
