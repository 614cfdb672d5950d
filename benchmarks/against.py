"""Compares the overhead of detect() here and at another commit, timed in turn; `make bench-against REV` builds that
commit.

    python -m benchmarks.against FOLDER [--seconds 60] [--steps mlp,gpt2]

FOLDER holds torchnan of that commit, and these benchmarks. Each side has a separate process, which times the step plain
and under detect(); the two ratios of a round are compared.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from pathlib import Path

import torch

from benchmarks import tables, workloads
from benchmarks.other_process import OtherProcess
from benchmarks.step_result import DETECT, OFF
from benchmarks.timing import Times, measure_until, ratio

HERE, THERE = "here", "there"


def prices(times: Times) -> dict[str, list[float]]:
    """detect() / off of each side, round by round."""
    return {
        side: [t / b for t, b in zip(times[f"{side} {DETECT}"], times[f"{side} {OFF}"], strict=True)]
        for side in (HERE, THERE)
    }


def is_precise(times: Times) -> bool:
    both = prices(times)
    return ratio(both[HERE], both[THERE]).is_within_a_percent


def compare(key: str, folder: Path, threads: int, seconds: float) -> str:
    """One row of the table."""
    sides = {
        HERE: OtherProcess(key, threads, keep_freed_memory=True),
        THERE: OtherProcess(key, threads, folder, keep_freed_memory=True),
    }
    timers = {
        f"{side} {mode}": functools.partial(process.time_once, mode)
        for side, process in sides.items()
        for mode in (OFF, DETECT)
    }
    times = measure_until(timers, is_precise, seconds)
    both = prices(times)
    here, there, change = statistics.median(both[HERE]), statistics.median(both[THERE]), ratio(both[HERE], both[THERE])
    interval = f"{change.low:>9.3f}-{change.high:.3f}{'' if change.is_within_a_percent else '  too busy to tell'}"
    return f"{key:<12}{there:>8.3f}{here:>8.3f}{change.median:>9.3f}{interval}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="longest time for a workload (default: 60)")
    parser.add_argument("--steps", default=",".join(workloads.EAGER))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    print(f"{tables.machine(given.threads)}; detect() / off\n{'':<12}{THERE:>8}{HERE:>8}{'change':>9}{'95 %':>12}")
    for key in given.steps.split(","):
        print(compare(key, given.folder.resolve(), given.threads, given.seconds), flush=True)


if __name__ == "__main__":
    main()
