"""The parameters that an optimizer steps, by name."""

from __future__ import annotations

import torch

from torchnan.detection.introspection import clean, unwrap


class SteppedParameters:
    """The parameters of an optimizer, which a program may add to, freeze and exchange at any time.

    Args:
        model: names them.
        optimizer: steps them.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._known: list[tuple[str, torch.Tensor]] = []

    def now(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the parameters as they are now; the same list as before if they are the same."""
        known, i = self._known, 0
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if i == len(known) or known[i][1] is not parameter:
                    self._known = named_parameters(self._model, self._optimizer)
                    return self._known
                i += 1
        if i < len(known):
            self._known = known[:i]
        return self._known


def named_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """Returns the optimizer's parameters, named as in the model where the model has them."""
    names = {id(parameter): clean(name) for name, parameter in unwrap(model).named_parameters()}
    return [
        (names.get(id(parameter), f"param_groups[{g}]['params'][{i}]"), parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]
