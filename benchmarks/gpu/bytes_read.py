"""Measures how much of the data that training steps write on a device is scanned.

    python -m benchmarks.gpu.bytes_read

Uses the device of tests/cpp/device, small models, float32, AdamW in its `foreach` form; detection begins before the
first step, and the third one counts. The rest is proved finite. A GPU runs other kernels for attention, so its share
may differ.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import torchnan
from benchmarks.gpu import models
from benchmarks.workloads import Workload, training
from tests.devices.lagging import Lagging


def small_gpt2(device: torch.device) -> Workload:
    """Two layers of 128, 2 x 128 tokens of 2,048."""
    model = models.GPT2(2, 128, 4, 2048, 128).to(device)
    ids = torch.randint(0, 2048, (2, 128)).to(device)

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return training("GPT-2, 2 layers of 128", model, ids, loss, 1)


def share_read(machine: Lagging, workload: Workload) -> float:
    with torchnan.detect(action="log") as watch:
        for _ in range(3):
            before = watch.stats()
            workload.step()
            machine.synchronize()
        after = watch.stats()
    read, proved = (after[what] - before[what] for what in ("device_bytes", "bytes_proved"))
    return float(read) / (read + proved)


def main() -> None:
    machine, device = Lagging(), torch.device("lagging:0")
    makers = {
        "gpt2": small_gpt2,
        **{name: lambda d, make=models.ALL[name]: make(d, small=True) for name in ("mlp", "resnet50")},
    }
    for name, make in makers.items():
        torch.manual_seed(0)
        print(f"{name:<10}{share_read(machine, make(device)):>8.1%}", flush=True)


if __name__ == "__main__":
    main()
