"""Measures detection that begins in mid-training: its first step, which knows no bound yet, and those after it.

    python -m benchmarks.joined_late [--steps mlp,gpt2] [--rounds 15] [--threads N]

Every round switches detection off and on again around a model that has been trained for some steps. A ratio compares a
step with the plain step of its round; "A/A" times the plain step twice.
"""

from __future__ import annotations

import argparse
import warnings

import torch

import torchnan
from benchmarks import clock, tables, workloads
from benchmarks.timing import Times, ratio
from benchmarks.workloads import Workload

WARM_UP = 5  # plain steps before the first round
PLAIN, AGAIN, DETECTED = "plain", "A/A", ("first step", "second step", "third step", "fourth step")


def seconds_of(workload: Workload) -> float:
    start = clock.seconds()
    workload.step()
    return clock.seconds() - start


def measure_rounds(workload: Workload, rounds: int) -> Times:
    for _ in range(WARM_UP):
        workload.step()
    times: Times = {row: [] for row in (PLAIN, AGAIN, *DETECTED)}
    for _ in range(rounds):
        workload.step()  # detection of the round before has ended
        times[PLAIN].append(seconds_of(workload))
        times[AGAIN].append(seconds_of(workload))
        with torchnan.detect():
            for row in DETECTED:
                times[row].append(seconds_of(workload))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joined_late", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="mlp,gpt2,bert,resnet50,llama")
    parser.add_argument("--rounds", type=int, default=15, help="6 or more (default: 15)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    columns = (AGAIN, *DETECTED)
    print(f"| step | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    for key in given.steps.split(","):
        workload = workloads.ALL[key]()
        times = measure_rounds(workload, given.rounds)
        ratios = " | ".join(f"{ratio(times[row], times[PLAIN]).median:.3f}" for row in columns)
        print(f"| {workload.name} | {ratios} |", flush=True)
    print(f"\nMeasured on {tables.machine(given.threads)}")


if __name__ == "__main__":
    main()
