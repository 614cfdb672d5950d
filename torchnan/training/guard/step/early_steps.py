"""Refuses steps of an optimizer before the gradients have been checked: in hooks of the backward pass, say."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torchnan.config.options import OptionError
from torchnan.config.text import printable, type_name
from torchnan.training.guard.step.networks import names_in, referred_by
from torchnan.training.guard.step.stepped_parameters import SteppedParameters

_ADVICE = "Let the guard step the optimizer, without such hooks."


class EarlySteps:
    """Notices every optimizer that is about to step parameters of the guarded one while forward and backward run.

    Args:
        parameters: those of the guarded optimizer.
    """

    def __init__(self, parameters: SteppedParameters) -> None:
        self._parameters = parameters
        # A place among the hooks of all optimizers: to register a hook anew in each step takes several times as long.
        place = register_optimizer_step_pre_hook(self._refuse)
        self._hooks: Any = place.hooks_dict_ref()
        self._key = place.id
        place.remove()

    def begin_refusing(self) -> None:
        """Makes such a step raise a ``RuntimeError`` before it changes anything, until :meth:`end_refusing`."""
        self._hooks[self._key] = self._refuse

    def end_refusing(self) -> None:
        """Lets optimizers step again."""
        self._hooks.pop(self._key, None)

    def _refuse(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # it runs forward and backward itself, in the closure, as Lightning does
        own = {id(parameter): name for name, parameter in self._parameters.now()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in own:
                    raise RuntimeError(
                        f"torchnan: a {type_name(optimizer)} is about to step {printable(own[id(parameter)])} before "
                        "the step guard has checked its gradient, so a bad step could not be kept from being applied. "
                        f"{_ADVICE}"
                    )


def require_checked_steps(optimizer: torch.optim.Optimizer, parameters: list[tuple[str, torch.Tensor]]) -> None:
    """Raises for an optimizer whose steps cannot be checked before they are applied.

    Raises:
        OptionError: it evaluates the loss several times in a step, or parameters are stepped in the backward pass.
    """
    if hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step"):
        raise OptionError(
            f"the optimizer is a {type_name(optimizer)}, which takes two steps with two losses, as SAM does: a step "
            "guard checks one before the optimizer steps. Use torchnan.NaNDetector in your own loop, before each."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptionError(
            f"the optimizer is a {type_name(optimizer)}, whose step() computes losses and gradients itself, by a "
            "closure: a step guard checks them before the optimizer steps. Use torchnan.NaNDetector in the closure."
        )
    for name, parameter in parameters:
        inner = _optimizer_in_hooks(parameter)
        if inner is not None:
            raise OptionError(
                f"a hook of {printable(name)} steps a {type_name(inner)} in the backward pass, before its gradient has "
                f"been checked, so a bad step could not be kept from being applied. {_ADVICE}"
            )


def _optimizer_in_hooks(parameter: torch.Tensor) -> torch.optim.Optimizer | None:
    """Returns the optimizer that a hook refers to that runs once the gradient has been accumulated."""
    for inner in getattr(parameter, "_in_backward_optimizers", None) or ():  # _apply_optimizer_in_backward()
        if isinstance(inner, torch.optim.Optimizer):
            return inner
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        referred = [value for _, value in referred_by(hook, depth=3)]
        inner = next((value for value in referred if isinstance(value, torch.optim.Optimizer)), None)
        if inner is not None and any("step" in names_in(function) for function in (hook, *referred)):
            return inner
    return None
