"""Validates the arguments of StepGuard before anything takes effect."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchnan.config.options import OptionError
from torchnan.config.policy import Policy
from torchnan.config.text import brief, printable, type_name
from torchnan.training.guard.step_observer import StepMonitor

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def resolve_policy(
    given: Policy | str | os.PathLike[str] | dict[str, Any] | None, options: Mapping[str, Any]
) -> Policy:
    """Returns the given policy, overridden by keywords, overridden by the environment."""
    if isinstance(given, Policy):
        base = given
    elif isinstance(given, dict):
        base = Policy.from_dict(given)
    else:
        base = Policy() if given is None else Policy.from_toml(given)
    changed = Policy.from_dict({**dataclasses.asdict(base), **Policy.with_new_names(options)})
    return changed.with_environment(os.environ)


def disabled_policy(policy: Policy) -> Policy:
    """Returns the policy under ``TORCHNAN=0``: no files are written, and gradients are reduced in backward."""
    return dataclasses.replace(policy, captures=None, log=None, snapshot_every=0, out_of_memory="raise")


def validate(
    model: Any,
    optimizer: Any,
    step_fn: Any,
    scheduler: Any,
    policy: Policy,
    save: Any,
    load: Any,
    on_instability: Any,
) -> None:
    """Raises for arguments that cannot be used."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type_name(model)}: StepGuard takes a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is a {type_name(optimizer)}: StepGuard takes a torch.optim.Optimizer")
    for name, function in (("step_fn", step_fn), ("save", save), ("load", load), ("on_instability", on_instability)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} is a {type_name(function)}: it must be callable")
    needed = _needed_by(getattr(scheduler, "step", None))
    if needed:
        raise OptionError(
            f"scheduler is a {type_name(scheduler)}, whose step() needs {needed}: the guard does not know it. Call its "
            "step() in your program, and give also=[scheduler], so that a rollback restores it."
        )
    if (save is None) != (load is None):
        raise OptionError("save and load belong together: one of them is missing.")
    if save is not None and policy.snapshot_folder is not None:
        raise OptionError("save and snapshot_folder are two places for snapshots: give one of them.")
    if policy.out_of_memory == "split" and hasattr(model, "set_requires_gradient_sync"):
        raise OptionError(
            "out_of_memory='split' cannot be used with FSDP: its forward pass waits for the other ranks, so a rank "
            "that runs out of memory cannot go back alone."
        )


def _needed_by(step: Any) -> str:
    """Returns the first argument that a function cannot be called without; ``""`` if there is none."""
    try:
        parameters = inspect.signature(step).parameters.values() if step is not None else ()
    except (TypeError, ValueError):  # built in
        return ""
    return next((p.name for p in parameters if p.default is p.empty and p.kind not in _VARIABLE), "")


def by_name(also: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the further parts of the training state by name; those of a list are called ``also[0]`` and so on.

    Raises:
        TypeError: one of them is neither a module nor an object with a state.
        OptionError: a name is taken.
    """
    if not isinstance(also, Sequence | Mapping) or isinstance(also, str):
        raise TypeError(f"also is a {type_name(also)}: it takes a list of objects, or a dict of them by name")
    parts = dict(also) if isinstance(also, Mapping) else {f"also[{i}]": part for i, part in enumerate(also)}
    for name, part in parts.items():
        if name in ("optimizer", "scaler", "scheduler", ""):
            raise OptionError(f"also has the name {brief(name)}, which is taken: give another.")
        if not all(callable(getattr(part, method, None)) for method in ("state_dict", "load_state_dict")):
            raise TypeError(
                f"{printable(str(name))} is a {type_name(part)}: also takes modules, optimizers and objects with "
                "state_dict() and load_state_dict()"
            )
    return parts


def validate_monitor(monitor: Any, policy: Policy, *, can_roll_back: bool) -> None:
    """Raises for a monitor that cannot be used, and for an ``instability`` table that could not be applied."""
    if monitor is not None and not isinstance(monitor, StepMonitor):
        raise TypeError(f"monitor is a {type_name(monitor)}: StepGuard takes a torchnan.Monitor")
    if not policy.instability:
        return
    if monitor is None or not monitor.finds_instabilities:
        raise OptionError(
            f"instability={brief(dict(policy.instability))} cannot be used without a monitor that diagnoses the run: "
            "give monitor=torchnan.Monitor(...), with live=True."
        )
    if "rollback" in policy.instability.values() and policy.snapshot_every == 0 and not can_roll_back:
        raise OptionError(
            f"instability={brief(dict(policy.instability))} has a rollback, and there are no snapshots to go back to: "
            "set snapshot_every."
        )


def unwrap_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Returns the optimizer inside the wrappers of Accelerate and Lightning, which scalers and hooks refer to."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrap_optimizer(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer
