"""Measures how long the host takes to check an operation on a device, in microseconds.

    python -m benchmarks.gpu.host_time [--json OUT]

Uses the device of tests/cpp/device with kernels that compute nothing, so that only the host is measured. The driver is
not included: in CUDA, one call per operation asks whether the stream is being captured. Figures are the shortest of
many rounds; `chrt -f 20 taskset -c 1` before the command keeps other processes away.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

import torchnan
from tests.devices.lagging import Lagging

GOALS = {"operation": 0.25, "list element": 0.1}
ROUNDS = 400
REPEAT = 50  # operations in a round
ELEMENTS = 148


def programs(device: torch.device) -> dict[str, tuple[Callable[[], object], int, str]]:
    """Returns, by name, a round to measure, the number of operations or list elements in it, and which of the two."""
    small, x, w = (torch.zeros(size).to(device) for size in ((8,), (64, 256), (256, 256)))
    xs, ys = ([torch.zeros(64).to(device) for _ in range(ELEMENTS)] for _ in range(2))

    def repeated(operation: Callable[[], object]) -> tuple[Callable[[], object], int, str]:
        def run() -> None:
            for _ in range(REPEAT):
                operation()

        return run, REPEAT, "operation"

    return {
        "add, 8 elements: typed, scanned": repeated(lambda: small + small),
        "tanh, 64x256: typed, proved": repeated(lambda: torch.tanh(x)),
        "mm, 64x256x256: typed, proved": repeated(lambda: x @ w),
        "mul_, 8 elements: typed, in place": repeated(lambda: small.mul_(small)),
        "atan, 64x256: boxed, scanned": repeated(lambda: torch.atan(x)),
        "_foreach_add_: 148 in place": (lambda: torch._foreach_add_(xs, ys), ELEMENTS, "list element"),
        "_foreach_sqrt: 148 new": (lambda: torch._foreach_sqrt(xs), ELEMENTS, "list element"),
    }


def shortest(run: Callable[[], object], count: int) -> float:
    """Returns microseconds of one operation."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.host_time", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="OUT")
    given = parser.parse_args()
    machine = Lagging()
    machine.use_stubs()
    gc.disable()
    table = {}
    print(f"{'microseconds':<40}{'plain':>8}{'detect() adds':>16}{'goal':>8}")
    with torch.no_grad():
        for name, (run, count, unit) in programs(torch.device("lagging:0")).items():
            machine.synchronize()
            plain = shortest(run, count)
            with torchnan.detect(action="log"):
                watched = shortest(run, count)
            plain = min(plain, shortest(run, count))
            table[name] = {"plain": plain, "added": watched - plain, "goal": GOALS[unit]}
            print(f"{name:<40}{plain:>8.3f}{watched - plain:>16.3f}{GOALS[unit]:>8.2f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
