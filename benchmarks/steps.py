"""The price of watching whole training steps, as ratios to the plain step.

    python -m benchmarks.steps [--rounds 15] [--steps mlp,gpt2] [--modes "detect()"] [--json OUT]

Every mode runs once a round, in random order, in one process; a ratio is taken within a round, so that what the
machine does to a round it does to both. The row "off again" is the plain step measured a second time: it shows what a
ratio of 1.00 looks like here. Counts are exact and do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
import warnings

import torch

import torchnan
from benchmarks import modes, workloads

BASE = "off"


def time_once(workload: workloads.Workload, mode: str) -> float:
    """Seconds per step."""
    with modes.ALL[mode](workload):
        workload.step()  # whatever a mode does at its first step is not its price
        start = time.perf_counter()
        for _ in range(workload.repeat):
            workload.step()
        return (time.perf_counter() - start) / workload.repeat


def measure(workload: workloads.Workload, names: list[str], rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each mode, round by round."""
    for _ in range(2):
        workload.step()
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in random.sample(names, len(names)):
            times[name].append(time_once(workload, name))
    return times


def count(workload: workloads.Workload) -> dict[str, object]:
    """What detect() does in one step, in the second and later ones alike."""
    with torchnan.detect() as watch:
        workload.step()
        before = watch.stats()
        workload.step()
        after = watch.stats()
    return {key: after[key] - before[key] for key in ("ops", "checked", "bytes", "call_sites")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", default="mlp,gpt2,resnet50")
    parser.add_argument("--modes", default=",".join(modes.ALL))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="OUT")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    names = [BASE, *(name for name in given.modes.split(",") if name != BASE)]
    print(f"PyTorch {torch.__version__}, {given.threads} threads, {platform.processor() or platform.machine()}")
    results = {}
    for key in given.steps.split(","):
        workload = workloads.ALL[key]()
        times = measure(workload, names, given.rounds)
        counts = count(workload)
        results[key] = {"times": times, "counts": counts}
        print(f"\n{workload.name}: {statistics.median(times[BASE]) * 1e3:.2f} ms; in one step of detect() "
              f"{counts['ops']} operations, {counts['checked']} tensors and {counts['bytes'] / 1e6:.1f} MB looked at, "
              f"{counts['call_sites']} call sites noted")  # fmt: skip
        print(f"  {'':<22}{'median':>8}{'min':>8}{'quartiles':>16}")
        for name in names[1:]:
            ratios = [t / base for t, base in zip(times[name], times[BASE], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            print(f"  {name:<22}{statistics.median(ratios):>8.3f}{min(times[name]) / min(times[BASE]):>8.3f}"
                  f"{low:>9.3f}-{high:.3f}")  # fmt: skip
    if given.json:
        with open(given.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
