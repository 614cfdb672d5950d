"""Validates the arguments of StepGuard before anything takes effect."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch

from torchnan.config.options import OptionError
from torchnan.config.policy import Policy
from torchnan.config.text import brief, type_name
from torchnan.training.guard.step_observer import StepMonitor


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
    model: Any, optimizer: Any, step_fn: Any, policy: Policy, save: Any, load: Any, on_instability: Any
) -> None:
    """Raises for arguments that cannot be used."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type_name(model)}: StepGuard takes a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is a {type_name(optimizer)}: StepGuard takes a torch.optim.Optimizer")
    for name, function in (("step_fn", step_fn), ("save", save), ("load", load), ("on_instability", on_instability)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} is a {type_name(function)}: it must be callable")
    if (save is None) != (load is None):
        raise OptionError("save and load belong together: one of them is missing.")
    if save is not None and policy.snapshot_folder is not None:
        raise OptionError("save and snapshot_folder are two places for snapshots: give one of them.")
    if policy.out_of_memory == "split" and hasattr(model, "set_requires_gradient_sync"):
        raise OptionError(
            "out_of_memory='split' cannot be used with FSDP: its forward pass waits for the other ranks, so a rank "
            "that runs out of memory cannot go back alone."
        )


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
