"""Runs steps in another process, to be timed in turn with those of this one.

    python -m benchmarks.other_process WORKLOAD THREADS [--keep-freed-memory]

Answers each line on stdin, the name of a mode, with seconds per step. An empty line requests the plain step; the first
other line imports torchnan.
"""

from __future__ import annotations

import argparse
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
        keep_freed_memory: whether malloc keeps the memory that a step frees.
    """

    def __init__(
        self, workload: str, threads: int, folder: Path | None = None, *, keep_freed_memory: bool = False
    ) -> None:
        options = ["--keep-freed-memory"] if keep_freed_memory else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.other_process", workload, str(threads), *options],
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
    parser = argparse.ArgumentParser("benchmarks.other_process")
    parser.add_argument("workload")
    parser.add_argument("threads", type=int)
    parser.add_argument("--keep-freed-memory", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.keep_freed_memory:
        keep_freed_memory()
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    workload = workloads.ALL[given.workload]()
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
