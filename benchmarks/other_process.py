"""Runs steps in another process, to be timed in turn with those of this one.

    python -m benchmarks.other_process WORKLOAD THREADS

Answers each line on stdin, the name of a mode, with seconds per step. An empty line requests the plain step; the first
other line imports torchnan.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from benchmarks import workloads
from benchmarks.allocator import keep_freed_memory
from benchmarks.timing import time_once


class OtherProcess:
    """Runs a workload elsewhere, one timing at a time; between timings it sleeps, and it ends with this process.

    Args:
        workload: its key in ``workloads.ALL``.
        threads: of PyTorch.
        folder: where ``benchmarks`` and ``torchnan`` are imported from; by default from where they are here.
    """

    def __init__(self, workload: str, threads: int, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.other_process", workload, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env=None if folder is None else {**os.environ, "PYTHONPATH": str(folder)},
        )
        self.time_once()  # it is ready when it has answered

    def time_once(self, mode: str = "") -> float:
        """Seconds per step under a mode of ``benchmarks.modes``; by default the plain step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{mode}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main() -> None:
    warnings.simplefilter("ignore")
    keep_freed_memory()
    torch.manual_seed(0)
    torch.set_num_threads(int(sys.argv[2]))
    workload = workloads.ALL[sys.argv[1]]()
    for _ in range(2):
        workload.step()
    assert "torchnan" not in sys.modules
    for line in sys.stdin:
        with _mode(line.strip(), workload):
            print(time_once(workload), flush=True)


def _mode(name: str, workload: workloads.Workload) -> contextlib.AbstractContextManager[None]:
    if not name:
        return contextlib.nullcontext()
    from benchmarks import modes  # imports torchnan

    return modes.ALL[name](workload)


if __name__ == "__main__":
    main()
