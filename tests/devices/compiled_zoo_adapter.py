"""torchnan on the programs of the zoo, compiled by Inductor for a device. Notes as in zoo_adapter.py."""

from __future__ import annotations

import torch
import torch._inductor.compile_fx

from tests.devices import zoo_adapter
from tests.zoo.compiled_adapter import compiled


def run(case, zoo):
    # A GPU is never several steps behind, for which calls are not kept.
    zoo.HOOKS["step"].append(torch.compiler.disable(lambda k: torch.accelerator.synchronize()))
    return zoo_adapter.run_there(compiled(case, zoo), zoo, go_there)


def go_there():
    machine = zoo_adapter.go_there()
    if machine is not None:
        from tests.devices.compiler import register

        register(machine)
    torch._dynamo.reset()
