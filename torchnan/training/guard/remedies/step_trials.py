"""Tries remedies on the step of a guard or of a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchnan.detection import optimizer_hooks, shards
from torchnan.detection.finding import Finding
from torchnan.detection.introspection import unwrap
from torchnan.detection.nested import map_tensors, rows_of
from torchnan.training.guard.remedies.change import Change
from torchnan.training.guard.remedies.trials import Outcome, Trials, try_on
from torchnan.training.guard.step.forward_backward import ForwardBackward, StepRun
from torchnan.training.guard.step.gradients import gradients_of

# Runs the step from its saved state on some micro-batches; the last argument is called after the backward pass.
RunStep = Callable[[list[Any], Callable[[], None]], StepRun]


def try_on_step(
    run_step: RunStep,
    forward_backward: ForwardBackward,
    batches: list[Any],
    finding: Finding | None,
    *,
    before: tuple[int, float] | None,
    step: int,
) -> Trials:
    """Runs a bad step once as it is and once for each remedy that fits.

    Args:
        run_step: runs the step.
        forward_backward: checks it.
        batches: its micro-batches, of which each run is given copies.
        finding: the origin; ``None`` if everything is finite, but the norm of the gradients is too large.
        before: the last good step and its loss.
        step: number of the step.
    """

    def after_backward(change: Change) -> None:
        change.after_backward([parameter for _, parameter in forward_backward.parameters])
        optimizer_hooks.check_gradients(forward_backward.optimizer)  # which the optimizer would use next

    def run(change: Change) -> Outcome:
        given = [change.batch(map_tensors(batch, lambda _, tensor: tensor.clone())) for batch in batches]
        ran = run_step(given, lambda: after_backward(change))
        anomaly, _ = forward_backward.agree(ran)
        loss = None if ran.loss is None else ran.loss.item()
        made = gradients_of(forward_backward.parameters)
        gradients = {name: shards.local(gradient).detach().clone() for name, gradient in made}
        return Outcome(loss, gradients, "" if anomaly is None else anomaly.text)

    rows = rows_of(batches[0]) if len(batches) == 1 else 1
    return try_on(run, finding, model=unwrap(forward_backward.model), rows=rows, before=before, step=step)
