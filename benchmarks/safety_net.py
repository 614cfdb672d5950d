"""Measures how soon the safety net finds a wrong proof in an ordinary training, and how many bytes it reads for that.

    python -m benchmarks.safety_net [--starts 10] [--json OUT]

Three faults are put into a training of a small network, each from another step on: a matrix product whose kernel rounds
its factors to bfloat16 under a rule for float32; a convolution whose transform overflows under a rule for its result;
and a write into a weight through an address that was taken before. A fault is found when a finding, a non-finite result
or an internal error is counted.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import multiprocessing
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import torchnan

WIDTH, BATCH = 96, 96
MOST_STEPS = 2000
LARGEST = float(torch.finfo(torch.float32).max)


def define_faulty_operators() -> torch.library.Library:
    """Operators with kernels that a setting could choose, and rules of an author who had others in mind."""
    library = torch.library.Library("torchnan_faulty", "DEF")
    library.define("mm(Tensor x, Tensor w) -> Tensor")
    library.define("conv(Tensor x, Tensor w) -> Tensor")
    library.impl("mm", lambda x, w: x.bfloat16().float() @ w.bfloat16().float(), "CPU")
    library.impl("conv", lambda x, w: torch.conv2d(x * 256, w, padding=1) / 256, "CPU")
    torchnan.register_bound("torchnan_faulty::mm", lambda x, w: 1.01 * x.shape[-1] * x.most * w.most)
    torchnan.register_bound("torchnan_faulty::conv", lambda x, w: 2 * 9 * w.shape[1] * x.most * w.most)
    return library


class Training:
    """Layers with an optimizer; `extra` runs in each step, beside them."""

    def __init__(self, extra: Callable[[int], object]) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(3) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
        self.model, self.extra = torch.nn.Sequential(*layers), extra
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.ones = torch.ones(BATCH, WIDTH)
        self.kept: object = None

    def step(self, number: int) -> None:
        y = self.model(torch.randn(BATCH, WIDTH))
        self.kept = self.extra(number)
        y.backward(self.ones)
        self.optimizer.step()
        self.optimizer.zero_grad()


def rounded_product(start: int) -> Training:
    def extra(number: int) -> torch.Tensor:
        x, w = torch.randn(BATCH, WIDTH) * 1.0, torch.randn(WIDTH, WIDTH) * 1e-20
        if number >= start:
            x = x.masked_fill(x > 2, LARGEST)
        return torch.tanh(torch.ops.torchnan_faulty.mm(x, w))

    return Training(extra)


def overflowing_transform(start: int) -> Training:
    def extra(number: int) -> torch.Tensor:
        x, w = torch.randn(4, 4, 24, 24) * 1.0, torch.randn(4, 4, 3, 3) * 1e-20
        if number >= start:
            x = x.masked_fill(x > 2, 1e37)
        return torch.tanh(torch.ops.torchnan_faulty.conv(x, w))

    return Training(extra)


def unseen_write(start: int) -> Training:
    weight = torch.ones(BATCH, WIDTH)
    memory = (ctypes.c_float * weight.numel()).from_address(weight.data_ptr())

    def extra(number: int) -> torch.Tensor:
        weight.mul_(1.0)
        if number == start:
            memory[3] = math.nan
        return torch.sigmoid(weight * 0.5)

    return Training(extra)


FAULTS: dict[str, Callable[[int], Training]] = {
    "factors rounded to bfloat16": rounded_product,
    "a transform that overflows": overflowing_transform,
    "a write that is not seen": unseen_write,
}


def steps_until_found(name: str, start: int) -> int:
    """Returns how many steps have the fault until it is found; MOST_STEPS if it is not."""
    training = FAULTS[name](start)
    with warnings.catch_warnings(), torchnan.detect(action="log", when="origin") as watch:
        warnings.simplefilter("ignore")
        for number in range(start + MOST_STEPS):
            training.step(number)
            counts = watch.stats()
            if watch.findings or counts["nonfinite"] or counts["internal_errors"]:
                return number - start + 1
    return MOST_STEPS


def bytes_of_a_step(steps: int = 1000) -> float:
    """Returns the bytes that the net reads in a healthy step: the mean over a whole turn."""
    read = []
    for every in (1000, 0):
        training = rounded_product(10**9)
        with torchnan.detect(rescan_every=every) as watch:
            training.step(0)
            before = watch.stats()["bytes"]
            for number in range(steps):
                training.step(number)
            read.append(watch.stats()["bytes"] - before)
    return (read[0] - read[1]) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10, help="from how many different steps on")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    library = define_faulty_operators()
    figures: dict[str, object] = {}
    # A process for each: a rule that was found wrong is withdrawn, and which proofs were tested is remembered.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as processes:
        figures["bytes of a step"] = processes.apply(bytes_of_a_step)
        print(f"bytes of a step: {figures['bytes of a step']:.0f}", flush=True)
        for name in FAULTS:
            starts = [(name, 3 + 97 * i) for i in range(options.starts)]
            found = processes.starmap(steps_until_found, starts, chunksize=1)
            figures[name] = found
            print(f"{name}: mean {statistics.mean(found):.1f} steps, {found}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures))
    library._destroy()


if __name__ == "__main__":
    main()
