"""A captured step, run again where it was not captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.distributed.agreement import Agreement, AnomalyKind
from torchnan.recovery.step.forward_backward import ForwardBackward, StepFunction, StepRun
from torchnan.recovery.step.norm_limit import NormLimit
from torchnan.recovery.step.replay import Replay, replay

if TYPE_CHECKING:
    from torchnan.capture.capture import Capture


class CapturedStep:
    """A capture, a model like the captured one, and the step function: all that running it takes.

    Args:
        capture: what to restore.
        model: its weights and buffers are overwritten.
        step_fn: as :class:`torchnan.StepGuard` takes it.
    """

    def __init__(self, capture: Capture, model: torch.nn.Module, step_fn: StepFunction) -> None:
        self._capture = capture
        self._model = model
        self._agreement = Agreement()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # says which parameters there are; never steps
        norm_limit = NormLimit(_norm_limit(capture))
        self._forward_backward = ForwardBackward(
            model, optimizer, step_fn, None, norm_limit, self._agreement, is_oom_recoverable=False
        )

    def run(self, after_backward: Callable[[], None] = lambda: None) -> StepRun:
        """Restores everything and runs forward and backward."""
        self._capture.restore(self._model)
        self._capture.random.restore()
        self._forward_backward.optimizer.zero_grad(set_to_none=True)
        return self._forward_backward.run(
            self._capture.batches, randoms=self._capture.batch_random, after_backward=after_backward
        )

    def replay(self) -> Replay:
        """Twice under ``detect()``.

        Raises:
            OptionError: TORCHNAN=0 is set.
        """
        if _C.is_disabled():
            raise OptionError("TORCHNAN=0 is set, and a replay looks for what made a NaN: unset it.")
        original = str(self._capture.event.get("bits", ""))
        return replay(self.run, self._forward_backward, self._agreement, original=original, step=self._capture.step)


def _norm_limit(capture: Capture) -> float | None:
    """A step that was bad for its norm is so again at about that norm."""
    norm: Any = capture.event.get("norm")
    return 0.99 * float(norm) if capture.event.get("what") == AnomalyKind.NORM.label and norm is not None else None
