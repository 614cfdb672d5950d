"""Runs one stage of a call: `python -m benchmarks.gpu.stages CALL STAGE DEVICE END OUT`, END of `time.monotonic()`.

Writes its verdicts as JSON, anew after each, so that a stage that is cut off leaves those that it had. Ends with the
process that has begun it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.calls import CALLS
from benchmarks.gpu.verdict import Verdict, write_verdicts


def bench_on(device: str, end: float) -> Bench:
    if device == "cuda":
        from tests.devices.cuda_device import Cuda

        return Bench(Cuda(), torch.device("cuda:0"), True, end)
    from tests.devices.lagging import Lagging

    return Bench(Lagging(), torch.device("lagging:0"), False, end)


def main(call: str, name: str, device: str, end: str, out: str) -> None:
    stage = CALLS[int(call)][name]
    verdicts: dict[str, Verdict] = {}
    parent = os.getppid()
    for verdict in stage.load()(bench_on(device, float(end)), *stage.arguments):
        verdicts[verdict.what] = verdict  # a figure may become more precise
        write_verdicts(Path(out), list(verdicts.values()))
        if os.getppid() != parent:
            sys.exit("the call was killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
