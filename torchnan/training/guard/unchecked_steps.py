"""Notices a training loop that steps its optimizer and never asks the guard."""

from __future__ import annotations

import logging

from torchnan.training.guard.step.forward_backward import ForwardBackward

logger = logging.getLogger("torchnan")


class UncheckedSteps:
    """Warns once if parameters change before the first call of ``ok_to_step()``: the optimizer steps without it.

    Args:
        step: knows the optimizer's parameters.
    """

    def __init__(self, step: ForwardBackward) -> None:
        self._step = step
        self._versions: int | None = None  # of the parameters at the first batch
        self._is_done = False

    def note_batch(self) -> None:
        """Notes that a batch begins."""
        if self._is_done:
            return
        versions = sum(parameter._version for _, parameter in self._step.parameters if not parameter.is_inference())
        if self._versions is None:
            self._versions = versions
        elif versions != self._versions:
            self._is_done = True
            logger.warning(
                "torchnan: the optimizer stepped, but ok_to_step() has not been called, so no step is checked, and all "
                "batches stay in memory. Write `if guard.ok_to_step(loss): optimizer.step()`."
            )

    def end(self) -> None:
        """Notes that ``ok_to_step()`` has been called."""
        self._is_done = True
