"""Measures the memory of a training with and without detection: page faults a step, malloc's heap, peak resident size.

    python -m benchmarks.heap [--steps gpt2,bert] [--runs 5] [--threads 1]

Each run is a separate process, without and with detection in turn, and malloc has its defaults. The layout of the heap
differs from run to run, so the table shows the median of the runs, and their range.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

import torch

import torchnan
from benchmarks import tables, workloads
from benchmarks.allocator import heap

WARM_UP, COUNTED = 10, 30  # steps
COLUMNS = ("page faults a step", "heap, MB", "peak resident, MB")
MODES = ("off", "detect()")


def measure(workload: str, mode: str, threads: int) -> list[float]:
    """Returns the numbers of one run, in the order of the columns."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    made = workloads.ALL[workload]()
    with torchnan.detect() if mode == "detect()" else contextlib.nullcontext():
        for _ in range(WARM_UP):
            made.step()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(COUNTED):
            made.step()
        used = resource.getrusage(resource.RUSAGE_SELF)
        return [(used.ru_minflt - before) / COUNTED, heap().arena / 1e6, used.ru_maxrss * 1024 / 1e6]


def run(workload: str, mode: str, threads: int) -> list[float]:
    """Measures in another process."""
    command = [sys.executable, "-m", "benchmarks.heap", "--threads", str(threads), "--run", workload, mode]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    measured: list[float] = json.loads(ended.stdout)
    return measured


def cell(numbers: Sequence[float]) -> str:
    return f"{statistics.median(numbers):,.0f} ({min(numbers):,.0f}-{max(numbers):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.heap", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="gpt2,bert,t5,llama,resnet50", help="the workloads, with commas")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", nargs=2, metavar=("WORKLOAD", "MODE"), help="measure in this process, and print JSON")
    given = parser.parse_args()
    if given.run:
        print(json.dumps(measure(*given.run, given.threads)))
        return
    print(f"| step | | {' | '.join(COLUMNS)} |\n|{' --- |' * (2 + len(COLUMNS))}")
    for workload in given.steps.split(","):
        runs: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
        for _ in range(given.runs):
            for mode in MODES:
                runs[mode].append(run(workload, mode, given.threads))
        for mode in MODES:
            print(f"| {workload} | {mode} | {' | '.join(map(cell, zip(*runs[mode], strict=True)))} |", flush=True)
    print(f"\nMeasured at {tables.machine(given.threads)}; the median of {given.runs} runs, and their range.")


if __name__ == "__main__":
    main()
