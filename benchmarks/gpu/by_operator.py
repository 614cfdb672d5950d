"""Measures which operators of a training step write the bytes that are scanned on a device.

    python -m benchmarks.gpu.by_operator gpt2 [--device cuda]

Without a GPU, small models run on the device of tests/cpp/device. The operations are told apart by a dispatch mode, so
a step of Adam is not proved as a whole.
"""

from __future__ import annotations

import argparse
import collections
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchnan
from benchmarks.gpu import models
from benchmarks.gpu.stages import bench_on

WARM_UP = 8  # steps
SHOWN = 25


class ByOperator(TorchDispatchMode):
    """Adds up what is scanned and proved from the beginning of an operation to that of the next one.

    Attributes:
        bytes_of: the number of calls, the bytes scanned and the bytes proved, by operator and dtype.
    """

    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.bytes_of: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
        self._stats = stats
        self._operator, self._before = "", stats()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        self.begin(f"{func} {tensors[0].dtype if tensors else ''}".replace("torch.", ""))
        return func(*args, **(kwargs or {}))

    def begin(self, operator: str) -> None:
        """Ends the operation before."""
        now = self._stats()
        row = self.bytes_of[self._operator]
        row[0] += 1
        row[1] += now["device_bytes"] - self._before["device_bytes"]
        row[2] += now["bytes_proved"] - self._before["bytes_proved"]
        self._operator, self._before = operator, now


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.by_operator", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=sorted(models.ALL))
    parser.add_argument("--device", default="lagging", choices=("cuda", "lagging"))
    given = parser.parse_args()
    bench = bench_on(given.device, math.inf)
    workload = bench.workload(given.model)
    with torchnan.detect(action="log") as watch:
        for _ in range(WARM_UP):
            workload.step()
        bench.machine.synchronize()
        with ByOperator(watch.stats) as mode:
            workload.step()
        mode.begin("")
    rows = sorted(mode.bytes_of.items(), key=lambda row: -row[1][1])
    print(f"{'operator':<60}{'calls':>7}{'scanned, MB':>13}{'proved, MB':>13}")
    for operator, (calls, scanned, proved) in rows[:SHOWN]:
        if scanned + proved:
            print(f"{operator:<60}{calls:>7}{scanned / 1e6:>13.2f}{proved / 1e6:>13.2f}")


if __name__ == "__main__":
    main()
