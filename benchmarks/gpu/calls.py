"""The stages of the calls, by priority. Imports neither PyTorch nor torchnan, which may not be built yet.

A rented GPU may end a command after ten minutes and the loan after fifteen, so the first call has the headline figures,
and a later stage is one that can be missed.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stage:
    """Some rows of a call, computed in a separate process.

    Attributes:
        function: the module of this package and the function that yields the verdicts.
        seconds: the time limit.
        arguments: of the function.
        allocator: for CUDA, if not the default one.
    """

    function: str
    seconds: int
    arguments: tuple[str, ...] = ()
    allocator: str = ""

    def load(self) -> Callable[..., Any]:
        module, name = self.function.split(".")
        return getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)  # type: ignore[no-any-return]


SECONDS = 560  # of a call
RESERVE = 12  # of them, to end what runs, and to pack

CALLS: dict[int, dict[str, Stage]] = {
    1: {
        "smoke": Stage("behaviour.smoke", 20),
        "gpt2": Stage("cost.step_times", 120, ("gpt2",)),
        "kernel": Stage("kernel.sweep", 25),
        "gpt2-trace": Stage("cost.one_step", 30, ("gpt2",)),
        "resnet50": Stage("cost.step_times", 90, ("resnet50",)),
        "resnet50-trace": Stage("cost.one_step", 30, ("resnet50",)),
        "mlp": Stage("cost.step_times", 80, ("mlp",)),
        "mlp-trace": Stage("cost.one_step", 25, ("mlp",)),
        "gpt2-compiled": Stage("cost.compiled_step_times", 120, ("gpt2",)),
    },
    2: {
        "smoke": Stage("behaviour.smoke", 15),
        "tests": Stage("behaviour.tests", 80, ("tests/gpu",)),
        "zoo": Stage("behaviour.zoo", 135, ("open",)),
        "graphs": Stage("behaviour.graphs", 40),
        "faults": Stage("behaviour.faults", 30),
        "fsdp2": Stage("behaviour.fsdp2", 20),
        "threads": Stage("behaviour.threads", 15),
        "device-tests": Stage("behaviour.tests", 99, ("tests/devices", "--ignore=tests/devices/test_zoo_on_device.py")),
        "zoo-rest": Stage("behaviour.zoo", 110, ("clean", "backward", "forward", "data")),
    },
    3: {
        "smoke": Stage("behaviour.smoke", 30),
        "sanitizer": Stage("behaviour.sanitizer", 90),
        "expandable": Stage("cost.one_step", 45, ("gpt2",), "expandable_segments:True"),
        "async": Stage("cost.one_step", 45, ("gpt2",), "backend:cudaMallocAsync"),
        "resnet50-compiled": Stage("cost.compiled_step_times", 110, ("resnet50",)),
        "mlp-compiled": Stage("cost.compiled_step_times", 60, ("mlp",)),
        "soak": Stage("cost.soak", 168, ("gpt2",)),
    },
}
