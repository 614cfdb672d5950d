"""The plain step in a process that has never heard of torchnan, to be timed in turn with the one that has.

python -m benchmarks.plain_process WORKLOAD THREADS      # answers each line on stdin with seconds per step
"""

from __future__ import annotations

import subprocess
import sys
import warnings

import torch

from benchmarks import workloads
from benchmarks.timing import time_once


class PlainProcess:
    """Runs a workload elsewhere, one timing at a time; between timings it sleeps, and it ends with this process."""

    def __init__(self, workload: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.plain_process", workload, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.time_once()  # it is ready when it has answered

    def time_once(self) -> float:
        """Seconds per step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(int(sys.argv[2]))
    workload = workloads.ALL[sys.argv[1]]()
    for _ in range(2):
        workload.step()
    assert "torchnan" not in sys.modules
    for _ in sys.stdin:
        print(time_once(workload), flush=True)


if __name__ == "__main__":
    main()
