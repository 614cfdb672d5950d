"""Steps that are applied before their verdict is read. A device undoes a bad one by itself."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import weakref
from collections.abc import Callable

from torchnan._load import _C
from torchnan.config.policy import Policy
from torchnan.config.text import printable
from torchnan.detection import signal_handlers
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement
from torchnan.training.guard.event import LateResult
from torchnan.training.guard.model_update import ModelUpdate
from torchnan.training.guard.step.buffers import Buffers
from torchnan.training.guard.step.forward_backward import UnreadRun
from torchnan.training.guard.step.random_state import RandomState
from torchnan.training.guard.step.step_inputs import SavedBatch, StepInputs
from torchnan.training.guard.undoable_update import BegunUpdate, UndoableUpdate

logger = logging.getLogger("torchnan")

_HOOK = "torchnan"  # among those of an optimizer, whose keys are numbers


@dataclasses.dataclass(frozen=True)
class LateStep:
    """A step that was applied and whose verdict has not been read.

    Attributes:
        step: its number.
        run: its run.
        inputs: what it was run with.
        update: its update.
        result: what the caller was given.
    """

    step: int
    run: UnreadRun
    inputs: tuple[RandomState, list[SavedBatch]]
    update: BegunUpdate
    result: LateResult


class LateSteps:
    """Applies steps that may be undone, and holds the last one until its verdict is read.

    There is at most one, and its verdict is read before the next update: that one would start from other counters and
    rates if it were bad. By then the device has the next forward and backward pass to do.

    Args:
        policy: ``max_undo_bytes``, and limits that a norm has to be read for.
        update: steps the optimizer.
        buffers: those that a step changes.
        inputs: those of the current step.
        agreement: a single rank has nobody to agree with.
        failures: counts steps that the device has refused to prepare for.
        settle: reads the verdict; a method of the guard, which holds this object, so it is not kept alive.

    Attributes:
        pending: the step that was applied and whose verdict has not been read.
    """

    def __init__(
        self,
        policy: Policy,
        update: ModelUpdate,
        buffers: Buffers,
        inputs: StepInputs,
        agreement: Agreement,
        failures: Failures,
        settle: Callable[[], object],
    ) -> None:
        needs_norm = (policy.max_norm, policy.norm_limit, policy.norm_factor) != (None, None, None)
        self._is_excluded = (
            policy.max_undo_bytes == 0
            or needs_norm
            or policy.rewind_data  # the next batch has been drawn
            or "raise" in (policy.on_bad_step, *policy.remedy.values())  # in this step
            or update.scaled_step.scaler is not None
        )
        self._update = update
        self._undoable = UndoableUpdate(update, buffers, policy.max_undo_bytes)
        self._inputs = inputs
        self._agreement = agreement
        self._failures = failures
        self._method = weakref.WeakMethod(settle)
        self.pending: LateStep | None = None
        self._process = os.getpid()

    def exclude(self) -> None:
        """Makes each step wait for its verdict from now on."""
        self._is_excluded = True

    def apply(self, step: int, run: UnreadRun) -> LateResult | None:
        """Applies a step that may be undone.

        Args:
            step: its number.
            run: its run.

        Returns:
            Its result; ``None`` if the run has to be read first.
        """
        is_detected = _C.open_scopes() > 0  # what the device puts back would not be known to detection
        if self._is_excluded or is_detected or self._agreement.ranks > 1 or self._inputs.mutated_tensor() is not None:
            return None
        update = None
        with self._failures.contained("letting a device undo a step"):
            update = self._undoable.begin(run)
        if update is None:
            return None
        settle = self._method()
        assert settle is not None  # the guard is in this step
        result = LateResult(step, run.loss, settle)
        self.pending = LateStep(step, run, self._inputs.now(), update, result)
        self._process = os.getpid()
        self._inputs.forget_batches()
        self._update.optimizer._optimizer_state_dict_pre_hooks[_HOOK] = self._settle_before_saving  # type: ignore[index]
        _to_settle.add(self)
        try:
            update.apply()
        except BaseException:  # of the optimizer or the scheduler: the step is over
            self.take()
            raise
        return result

    def take(self) -> LateStep | None:
        """Returns the step whose verdict is to be read, and holds it no longer; ``None`` if there is none."""
        pending, self.pending = self.pending, None
        if pending is None:
            return None
        _to_settle.discard(self)
        self._update.optimizer._optimizer_state_dict_pre_hooks.pop(_HOOK, None)  # type: ignore[call-overload]
        return pending if self._process == os.getpid() else None  # a forked child cannot use the device

    def settle(self) -> None:
        """Reads the verdict on the pending step, and handles the step if it was bad."""
        if (settle := self._method()) is not None:
            settle()

    def _settle_before_saving(self, optimizer: object) -> None:
        self.settle()


_to_settle: weakref.WeakSet[LateSteps] = weakref.WeakSet()


def settle_all() -> None:
    """Reads the verdicts on the last steps of all guards.

    Raises:
        TrainingStopped: the policy of a guard cannot recover from its last step.
    """
    for late in list(_to_settle):
        late.settle()


def _settle_at_exit() -> None:
    for late in list(_to_settle):
        try:
            late.settle()
        except Exception as error:  # noqa: BLE001 - the program is over
            signal_handlers.let_through(error)
            logger.warning("torchnan: after the last step: %s", printable(str(error), 1000))


atexit.register(_settle_at_exit)
