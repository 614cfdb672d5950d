"""Runs a captured step twice under detection, and says whether its NaN recurs and where it comes from.

torchnan replay captures/rank-0-step-00000047 --step train:step --model train:build_model
torchnan replay captures/rank-0-step-00000047 --step train:make_step --device cuda
torchnan replay captures/rank-0-step-00000047 --step train:step --model train:build_model --remedies

--step names the function that was passed to StepGuard, step(model, batch); --model then names a function without
arguments that builds the model. Or --step names a function without arguments that returns both: (model, step function).

--remedies runs the step once more for each remedy that fits the origin, and prints which of them make it finite.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from torchnan.config.options import OptionError
from torchnan.config.text import printable, type_name
from torchnan.training.capture import Capture, load_capture, require_capture
from torchnan.training.guard.event import FINITE_IN_EAGER, SUSPECTS_OF_TRANSIENT
from torchnan.training.guard.step.replay import ReplayedStep

NAME = "replay"
HELP = "run a captured step again, and name its origin"

REPRODUCED, NOT_REPRODUCED = 1, 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the capture and the functions."""
    parser.add_argument("capture", help="folder of the capture")
    parser.add_argument("--step", required=True, metavar="MODULE:FUNCTION", help="step(model, batch), or both of them")
    parser.add_argument("--model", metavar="MODULE:FUNCTION", help="builds the model")
    parser.add_argument("--device", help="where to run (default: cpu)", default="cpu")
    parser.add_argument("--remedies", action="store_true", help="try what may make the step finite")


def execute(given: argparse.Namespace) -> int:
    """Prints the result of the replay; returns 1 if the step is bad again, 0 if it is finite."""
    _require_device(given.device)
    require_capture(given.capture)  # before the user's module is imported, which may train
    sys.path.insert(0, os.getcwd())  # as under `python script.py`
    build = _model_and_step(given.step, given.model)
    capture = load_capture(given.capture, device=given.device)  # before work that may take minutes
    model, step_fn = build()
    replayed = capture.replay(model.to(given.device), step_fn)
    print(_text(capture, replayed))
    if given.remedies:
        print(f"\n{capture.try_remedies(model, step_fn, replayed=replayed)}")
    return NOT_REPRODUCED if replayed.verdict == "transient" else REPRODUCED


def _require_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # PyTorch's error without CUDA
        raise OptionError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None


ModelAndStep = tuple[torch.nn.Module, Callable[..., Any]]


def _model_and_step(step: str, model: str | None) -> Callable[[], ModelAndStep]:
    """Returns the functions that make model and step. Invalid names are rejected before anything runs."""
    function = _named(step, "--step")
    if model is not None:
        build_model = _named(model, "--model")
        return lambda: (build_model(), function)
    wanted = [
        p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL
    ]
    if wanted:
        raise OptionError(
            f"{step} takes {len(wanted)} arguments, so it is a step function: add --model MODULE:FUNCTION, which "
            "builds the model, or give a --step function without arguments that returns (model, step function)."
        )
    return lambda: _checked(step, function())


def _checked(step: str, returned: Any) -> ModelAndStep:
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], torch.nn.Module)):
        raise OptionError(f"{step}() returned a {type_name(returned)}: it must return (model, step function).")
    return returned


def _named(text: str, option: str) -> Callable[..., Any]:
    module, _, name = text.partition(":")
    if not name:
        raise OptionError(f"{option} {text} cannot be used: it takes MODULE:FUNCTION, such as train:step.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # "..x" and "" are not names of modules
        raise OptionError(f"{option} {text} cannot be used: {error}.") from None
    if not callable(found):
        raise OptionError(f"{option} {text} cannot be used: it is a {type_name(found)}, not a function.")
    return found  # type: ignore[no-any-return]


def _text(capture: Capture, replayed: ReplayedStep) -> str:
    seen = printable(str(capture.event.get("seen")), 1000)
    head = f"torchnan: step {capture.step} of rank {capture.rank}, captured as: {seen}"
    lines = [head]
    if replayed.verdict is not None and replayed.reason:
        lines.append(f"  differs   {printable(replayed.reason, 1000)}: suspect that first")
    torch_then = printable(str(capture.versions.get("torch")))
    if torch_then != torch.__version__:
        lines.append(f"  PyTorch   {torch.__version__} here, {torch_then} when it was captured")
    verdict = f"NOT run: {printable(replayed.reason, 1000)}"
    lines.append(f"  replay    {verdict if replayed.verdict is None else _VERDICTS[replayed.verdict]}")
    if replayed.verdict == "persistent":
        lines.append(f"  bits      {'the same as' if replayed.same_bits else 'other than'} when it was captured")
    if replayed.finite_in_eager is not None:
        lines.append(f"  eager     {FINITE_IN_EAGER[replayed.finite_in_eager]}")
    if replayed.finding is not None:
        lines.append(str(replayed.finding))
    return "\n".join(lines)


_VERDICTS = {
    "persistent": "reproduced, twice, with the same origin",
    "nondeterministic": "not the same each time it is run",
    "transient": f"NOT reproduced: finite both times here; {SUSPECTS_OF_TRANSIENT}",
}
