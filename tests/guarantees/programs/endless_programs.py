"""Programs that go wrong as long as they run, in separate processes, and the memory that this takes.

``python endless_programs.py PROGRAM STEPS on|off LOG`` prints, as JSON, the resident bytes at twenty moments, and the
counters of the detection.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import torchnan

NAN = float("nan")
ORIGINS = 100  # reported in each step


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 8))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.full((4, 8), NAN)).square().mean().backward()
    optimizer.step()


def nan_everywhere() -> Callable[[int], None]:
    """Forward, backward, weights and optimizer, and `ORIGINS` more values, each of which is a finding or a repeat."""
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters())
    negative = torch.full((1,), -1.0)

    def step(i: int) -> None:
        train(model, optimizer)
        for _ in range(ORIGINS):
            negative.log()

    return step


class Canary:
    """Stored in a node of a graph, it lives as long as the node."""


def new_models() -> Callable[[int], None]:
    """A model and an optimizer for each step, which are gone afterwards."""

    def step(i: int) -> None:
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        out = model(torch.full((4, 8), NAN))
        out.grad_fn.metadata["canary"] = canary = Canary()
        out.square().mean().backward()
        gradient = model[0].weight.grad
        references = [weakref.ref(thing) for thing in (model, model[0].weight, gradient, out, canary)]
        optimizer.step()
        del model, optimizer, out, gradient, canary
        assert [reference() for reference in references] == [None] * len(references), "kept alive"

    return step


def new_places() -> Callable[[int], None]:
    """The gradient of each step comes from another call path: one of 2^24 paths through a recursion."""
    weight = nn.Parameter(torch.full((2,), NAN))

    def descend(way: int, depth: int) -> torch.Tensor:
        if depth == 0:
            return weight * 2.0
        return descend(way >> 1, depth - 1) if way & 1 else (lambda: descend(way >> 1, depth - 1))()

    return lambda i: descend(i, 24).sum().backward()


def new_threads() -> Callable[[int], None]:
    """Each step runs in a new thread, which takes part in the detection."""
    weight = nn.Parameter(torch.full((2,), NAN))

    def work(scope: contextlib.AbstractContextManager[object]) -> None:
        with scope:
            (weight * 2.0).sum().backward()

    def step(i: int) -> None:
        thread = threading.Thread(target=work, args=(SCOPE,))
        thread.start()
        thread.join()

    return step


def new_operators() -> Callable[[int], None]:
    """Registers an operator for each step, calls it once and removes it; more of them than the table holds.

    A later operator may have the same address, and must not be confused with it.
    """
    negative = torch.full((1,), -1.0)

    def step(i: int) -> None:
        name = f"log{i}"
        with torch.library._scoped_library("endless", "FRAGMENT") as library:
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, torch.log, "CPU")
            getattr(torch.ops.endless, name)(negative)
            if WATCHED and i % 50 == 0:
                with torchnan.detect(action="log", when="origin") as watch:
                    getattr(torch.ops.endless, name)(negative)
                assert [finding.op for finding in watch.findings] == [f"endless::{name}"]
            delattr(torch.ops.endless, name)

    return step


def bad_steps() -> Callable[[int], None]:
    """A guard that skips every step, and captures as many as it may; or a step without a guard."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if not WATCHED:
        return lambda i: train(model, optimizer)
    guard = torchnan.StepGuard(
        model,
        optimizer,
        lambda model, batch: model(batch).square().mean(),
        captures=str(Path(LOG).with_suffix(".captures")),
        log=str(Path(LOG).with_suffix(".steps")),
        max_consecutive=10**9,
        max_skips=10**9,
    )

    def step(i: int) -> None:
        assert not guard.step(torch.full((4, 8), NAN)).applied

    return step


PROGRAMS = {p.__name__: p for p in (nan_everywhere, new_models, new_places, new_threads, new_operators, bad_steps)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    program, steps, WATCHED, LOG = PROGRAMS[sys.argv[1]], int(sys.argv[2]), sys.argv[3] == "on", sys.argv[4]
    when = "harm" if program is new_models else "origin"
    watch = torchnan.detect(action="log", when=when, log=LOG) if WATCHED and program is not bad_steps else None
    SCOPE: contextlib.AbstractContextManager[object] = watch or contextlib.nullcontext()
    moments = {steps * k // 20 for k in range(1, 21)}
    memory = []
    with SCOPE:
        step = program()
        for i in range(1, steps + 1):
            step(i)
            if i in moments:
                memory.append(resident())
    print(json.dumps({"memory": memory, "stats": watch.stats() if watch else {}}))
