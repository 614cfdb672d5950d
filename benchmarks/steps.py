"""The price of watching whole training steps, as ratios to the plain step.

    python -m benchmarks.steps [--rounds 15] [--steps mlp,gpt2] [--modes "detect()"] [--json OUT]

Every mode runs once a round, in random order; a ratio is taken within a round, so that what the machine does to a
round it does to both. "Loaded, off" is this process, with torchnan in it and detection off, against one that has never
heard of it; all other modes are ratios to "loaded, off". The rows "again (A/A)" time the same thing twice: they show
what a ratio of 1.00 looks like here. Counts are exact and do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import warnings
from collections.abc import Callable

import torch

import torchnan
from benchmarks import modes, price_of_monitor, workloads
from benchmarks.plain_process import PlainProcess
from benchmarks.timing import time_once

PLAIN, PLAIN_AGAIN = "plain", "plain again (A/A)"
OFF, OFF_AGAIN = "loaded, off", "off again (A/A)"


def base_of(name: str) -> str:
    """What a row is a ratio to."""
    return PLAIN if name in (PLAIN_AGAIN, OFF) else OFF


def timers(key: str, workload: workloads.Workload, names: list[str], threads: int) -> dict[str, Callable[[], float]]:
    """How to time each row."""

    def under(mode: modes.Mode) -> Callable[[], float]:
        def timer() -> float:
            with mode(workload):
                return time_once(workload)

        return timer

    known = modes.ALL if workload.eager is None else modes.COMPILED
    made: dict[str, Callable[[], float]] = {name: under(mode) for name, mode in known.items() if name in names}
    made[OFF] = made[OFF_AGAIN] = under(modes.off)
    for name in (PLAIN, PLAIN_AGAIN):
        made[name] = PlainProcess(key, threads).time_once
    return made


def measure(timers_: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each row, round by round."""
    times: dict[str, list[float]] = {name: [] for name in timers_}
    for _ in range(rounds):
        for name in random.sample(list(timers_), len(timers_)):
            times[name].append(timers_[name]())
    return times


def count(workload: workloads.Workload) -> dict[str, int]:
    """What detect() does in one step, in the second and later ones alike."""
    with torchnan.detect() as watch:
        workload.step()
        before = watch.stats()
        workload.step()
        after = watch.stats()
    return {key: after[key] - before[key] for key in ("ops", "checked", "bytes", "call_sites")}


def memory_of_guard(workload: workloads.Workload) -> dict[str, int]:
    """What a StepGuard with one snapshot holds between steps."""
    guard = modes.guard_of(workload, snapshot_every=1, snapshots=1)
    guard.step(workload.batch)
    return guard.memory()


def print_table(workload: workloads.Workload, times: dict[str, list[float]], counts: dict[str, int]) -> None:
    """One workload, a row per mode."""
    print(
        f"\n{workload.name}: {statistics.median(times[PLAIN]) * 1e3:.2f} ms. In one step detect() sees {counts['ops']} "
        f"operations, looks at {counts['checked']} tensors and {counts['bytes'] / 1e6:.1f} MB, and notes "
        f"{counts['call_sites']} call sites. A StepGuard holds {counts['buffers'] / 1e6:.1f} MB between steps, and "
        f"{counts['snapshots'] / 1e6:.1f} MB a snapshot."
    )
    print(f"  {'':<24}{'median':>8}{'min':>8}{'quartiles':>16}")
    for name in [PLAIN_AGAIN, OFF, OFF_AGAIN, *(n for n in times if n not in (PLAIN, PLAIN_AGAIN, OFF, OFF_AGAIN))]:
        base = times[base_of(name)]
        ratios = [t / b for t, b in zip(times[name], base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {name:<24}{middle:>8.3f}{min(times[name]) / min(base):>8.3f}{low:>9.3f}-{high:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", default="mlp,gpt2,resnet50,mlp-compiled,gpt2-compiled")
    parser.add_argument("--modes", default=",".join({**modes.ALL, **modes.COMPILED}))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="OUT")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    print(f"PyTorch {torch.__version__}, {given.threads} threads, {platform.processor() or platform.machine()}")
    results = {}
    for key in given.steps.split(","):
        workload = workloads.ALL[key]()
        counts = {**count(workload), **memory_of_guard(workload)}
        part = price_of_monitor.microseconds(workload)
        times = measure(timers(key, workload, given.modes.split(","), given.threads), given.rounds)
        print_table(workload, times, counts)
        guarded = statistics.median(times["StepGuard"] if "StepGuard" in times else times[OFF])
        print(f"  Beside its StepGuard a Monitor takes {part:.0f} µs of a step, {part / guarded / 1e4:.2f} %.")
        results[key] = {"times": times, "counts": counts, "microseconds_of_monitor": part}
    if given.json:
        with open(given.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
