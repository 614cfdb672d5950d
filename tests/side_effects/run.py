"""Runs one case in this process, plain or under torchnan, and returns its facts."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import random
import sys
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch

from tests.side_effects.program import EAGER, Case, Program
from tests.side_effects.recorder import Recorder, without_addresses
from tests.side_effects.warm import ONE_THREAD, QUICK


def run(case: Case, *, watched: bool) -> dict[str, Any]:
    """Returns the facts of a run, and under torchnan what its sessions say: findings and internal errors."""
    sessions: list[Any] = []
    _prepare(case)
    torchnan = importlib.import_module("torchnan") if watched else None

    def detection() -> AbstractContextManager[Any]:
        if torchnan is None:
            return contextlib.nullcontext()
        sessions.append(torchnan.detect(action="log"))
        return sessions[-1]

    recorder = Recorder(torch.device(case.device), detection, torchnan)
    gc.collect()
    gc.freeze()  # what existed before is not counted
    gc.disable()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        places_itself = case.program.places_detection or case.program.guards
        with contextlib.nullcontext() if places_itself else detection():
            with recorder.catching("the program"):
                case.program.function(recorder, case.variant == "bad")
            recorder.process("at the end")
        recorder.process("after detection")
    recorder.add("warnings", [_warning(warning) for warning in warned])
    found = [finding for session in sessions for finding in session.findings]
    return {
        "facts": recorder.facts(),
        "findings": [f"{f.level} {f.op} {f.compiled and (f.compiled.replay, f.compiled.obstacle)}" for f in found],
        "internal errors": sum(session.stats()["internal_errors"] for session in sessions),
    }


def _prepare(case: Case) -> None:
    """Gives every run the same start."""
    _set_defaults(torch._inductor.config, ONE_THREAD if case.program.generates_code else QUICK)
    _set_defaults(torch._dynamo.config, {"disable": case.way == EAGER})
    if case.device == "lagging":
        import torchnan  # noqa: F401 - the device brings a scanner for it
        from tests.devices.compiler import register
        from tests.devices.lagging import Lagging

        register(Lagging())
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def _set_defaults(config: ModuleType, options: dict[str, Any]) -> None:
    """Sets options for this thread and for all others, whose options PyTorch keeps apart."""
    for name, value in options.items():
        setattr(config, name, value)
        config._config[name].default = value


def _warning(warning: warnings.WarningMessage) -> str:
    place = "/".join(Path(warning.filename).parts[-3:])
    return f"{place}:{warning.lineno} {warning.category.__name__}: {without_addresses(str(warning.message))}"


def main() -> None:
    """Runs the case that the arguments name, and writes the result to a file."""
    module, name, variant, way, device, watched, file = sys.argv[1:]
    program: Program = getattr(importlib.import_module(module), name)
    result = run(Case(program, variant, way, device), watched=watched == "watched")
    Path(file).write_text(json.dumps(result))
