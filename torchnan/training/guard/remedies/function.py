"""Tries remedies on a step that is given as a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.text import brief
from torchnan.detection.apart import step_apart
from torchnan.detection.finding import Finding
from torchnan.detection.nested import tensors_in
from torchnan.detection.pause import detection_paused
from torchnan.detection.session import detect, entered_with_new_threads
from torchnan.training.guard.remedies.change import Change
from torchnan.training.guard.remedies.trials import Outcome, Trials, state_kept, try_on
from torchnan.training.guard.step.forward_backward import loss_of
from torchnan.training.guard.step.random_state import RandomState, process_states_kept


def try_remedies(step: Callable[[], Any], *, model: torch.nn.Module | None = None) -> Trials:
    """Runs a step under detection, and once more for each remedy that fits its origin.

    Random states, and the weights, buffers and gradients of ``model``, are put back before each run and at the end.

    Args:
        step: runs forward and backward, and may be called again. Returns the loss as :class:`torchnan.StepGuard` takes
            it, or anything with tensors in it whose gradients are compared.
        model: whose gradients are compared, and whose modules may run in another dtype.

    Returns:
        what came of it; ``str()`` gives a table.

    Raises:
        OptionError: TORCHNAN=0 is set.
        TypeError: ``step`` is not a function, or ``model`` not a module.
    """
    if not callable(step):
        raise TypeError(f"try_remedies({brief(step)}): step is a function that runs forward and backward.")
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"try_remedies(model={brief(model)}): model is a torch.nn.Module.")
    if _C.is_disabled():
        raise OptionError("TORCHNAN=0 is set, and remedies are tried under detection: unset it.")
    states = RandomState.now()
    tensors = [] if model is None else [*model.parameters(), *model.buffers()]
    held: list[Any] = []

    def run(change: Change) -> Outcome:
        with state_kept(tensors):
            states.restore()
            if model is not None:
                model.zero_grad(set_to_none=True)
            held[:] = [step()]  # alive until detection ends, as the variables of a script are
            return _outcome(held[0], model)

    with process_states_kept():
        with state_kept(tensors):
            finding = step_apart(lambda: _finding_of(step, model))
        if finding is None:
            return Trials(None, (), 1, reason="the step is finite")
        return try_on(run, finding, model=model, step=finding.step)


def _finding_of(step: Callable[[], Any], model: torch.nn.Module | None) -> Finding | None:
    session = detect(action="log", model=model)
    if model is not None:
        model.zero_grad(set_to_none=True)
    with entered_with_new_threads(session):
        held = step()
    del held
    return session.first


def _outcome(returned: Any, model: torch.nn.Module | None) -> Outcome:
    named = {path: tensor for path, tensor in tensors_in(returned, "") if tensor.is_leaf}
    named |= {} if model is None else dict(model.named_parameters())
    loss: torch.Tensor | None = None
    with contextlib.suppress(TypeError):
        loss = loss_of(returned)
    with detection_paused(), torch.no_grad():
        gradients = {name: tensor.grad.detach().clone() for name, tensor in named.items() if tensor.grad is not None}
        bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        is_loss_bad = loss is not None and not loss.isfinite().all()
        fault = "a loss that is not finite" if is_loss_bad else f"NaN or Inf in the gradient of {bad[0]}" if bad else ""
        return Outcome(None if loss is None else loss.detach().item(), gradients, fault)
