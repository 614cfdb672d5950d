"""torchnan on the programs of the zoo with all their functions and modules compiled by Inductor."""

import dataclasses
import functools

import torch
import torch._inductor.compile_fx  # before the scorer forks

from tests.zoo import adapter
from tests.zoo.framework import Inapplicable, is_finite

torch._inductor.config.compile_threads = 1  # no pool of processes for each program


def run(case, zoo):
    """Runs one case compiled and returns its findings, oldest first."""
    case = compiled(case, zoo)
    try:
        symptoms = case.run()
    except Exception as error:
        raise Inapplicable(f"cannot be compiled: {type(error).__name__}") from error
    if case.kind != "clean" and is_finite(symptoms):
        raise Inapplicable("finite when compiled")
    del symptoms
    torch._dynamo.reset()
    return adapter.run(case, zoo)


def compiled(case, zoo):
    """Returns the case with its program compiled.

    What a program announces is announced outside of compiled code, where a model is one whose modules Dynamo knows, and
    so that both runs have the same graphs.
    """
    zoo.HOOKS["model"].append(torch.compiler.disable(lambda module: module.compile()))
    zoo.HOOKS["step"].append(torch.compiler.disable(lambda k: None))
    return dataclasses.replace(case, fn=_compiled(case.fn))


def _compiled(program):
    @functools.wraps(program)
    def run_compiled():
        return torch.compile(program)()

    return run_compiled
