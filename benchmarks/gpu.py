"""The price of watching training steps on a GPU, beside every peer, as one JSON file.

    python -m benchmarks.gpu --json OUT [--rounds 9] [--steps gpt2,resnet50,mlp]

Modes run in random order within a round, and a ratio is taken within a round, as in benchmarks.steps. A step is timed
by CUDA events, from the first thing that the stream does to the last. What one step launches, waits for and copies is
counted by CUPTI: those figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import random
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

import torchnan
from benchmarks import modes
from benchmarks.workloads import Workload, training

OFF, OFF_AGAIN = "off", "off again (A/A)"
MODES = ["StepGuard", "detect()", "set_detect_anomaly", "forward hooks", "Python dispatch mode"]
COUNTED = {
    "launches": ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
    "waits": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    "copies": ("cudaMemcpyAsync", "cudaMemcpy"),
}


def gpt2() -> Workload:
    """GPT-2 124M, 8 x 1024 tokens, bfloat16 autocast."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda()
    ids = torch.randint(0, 50257, (8, 1024), device="cuda")

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(input_ids=ids, labels=ids).loss

    return training("GPT-2 124M, 8x1024, bf16", model, {"input_ids": ids}, loss, 3)


def resnet50() -> Workload:
    """ResNet-50, 64 images of 224 x 224, bfloat16 autocast, channels last."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig()).cuda().to(memory_format=torch.channels_last)
    pixels = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 2, (64,), device="cuda")

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(pixel_values=pixels, labels=labels).loss

    return training("ResNet-50, 64x224², bf16", model, {"pixel_values": pixels, "labels": labels}, loss, 3)


def mlp() -> Workload:
    """Launch-bound: 8 layers of 256, batch 64, float32."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())]
    model, x = torch.nn.Sequential(*layers).cuda(), torch.randn(64, 256, device="cuda")
    return training("MLP 8x256, batch 64", model, x, lambda: model(x).square().mean(), 40)


ALL = {"gpt2": gpt2, "resnet50": resnet50, "mlp": mlp}


def time_once(workload: Workload, mode: Callable[[Workload], AbstractContextManager[None]]) -> float:
    """Milliseconds per step, after one that is not counted."""
    with mode(workload):
        workload.step()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(workload.repeat):
            workload.step()
        end.record()
        end.synchronize()
    return float(begin.elapsed_time(end)) / workload.repeat


def count(workload: Workload, mode: Callable[[Workload], AbstractContextManager[None]]) -> dict[str, int]:
    """What one step asks of the runtime."""
    with mode(workload):
        workload.step()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            workload.step()
    names = collections.Counter(event.name for event in profile.events() or ())
    return {what: sum(names[name] for name in of) for what, of in COUNTED.items()}


def scan_speed() -> dict[str, float]:
    """Bytes a second that the scan reads, beside those that a copy reads: GB/s."""
    x = torch.randn(1 << 28, device="cuda")  # 1 GiB
    y = torch.empty_like(x)

    def milliseconds(work: Callable[[], object]) -> float:
        work()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(20):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 20

    copy, plain = milliseconds(lambda: y.copy_(x)), milliseconds(lambda: torch.neg(x, out=y))
    with torchnan.detect(exact=True):
        watched = milliseconds(lambda: torch.neg(x, out=y))
    gigabytes = x.nbytes / 1e9
    return {"copy_reads": gigabytes / copy * 1e3, "scan_reads": gigabytes / max(watched - plain, 1e-9) * 1e3}


def measure(key: str, rounds: int) -> dict[str, object]:
    """One workload: times by mode and round, counts by mode."""
    workload = ALL[key]()
    rows = {OFF: modes.off, OFF_AGAIN: modes.off, **{name: modes.ALL[name] for name in MODES}}
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name in random.sample(list(rows), len(rows)):
            times[name].append(time_once(workload, rows[name]))
    print(f"\n{workload.name}: {statistics.median(times[OFF]):.2f} ms a step")
    counts = {name: count(workload, rows[name]) for name in (OFF, "StepGuard", "detect()")}
    for name, its in times.items():
        ratio = statistics.median(t / base for t, base in zip(its, times[OFF], strict=True))
        print(f"  {name:<24}{ratio:>8.3f}   {counts.get(name, '')}")
    return {"name": workload.name, "milliseconds": times, "counts": counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", default=",".join(ALL))
    parser.add_argument("--json", metavar="OUT", required=True)
    given = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "torchnan": importlib.metadata.version("torchnan"),
    }
    print(f"{results['device']}, PyTorch {torch.__version__}")
    results["scan_gigabytes_per_second"] = scan_speed()
    for key in given.steps.split(","):
        results[key] = measure(key, given.rounds)
        with open(given.json, "w") as file:  # each as it comes: the rest may never
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
