"""StepGuard: keeps bad training steps from being applied, captures and replays them, and recovers."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.policy import OWN_OF_A_RANK, Action, Policy
from torchnan.config.text import brief, printable
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement, AgreementError, Anomaly, AnomalyKind
from torchnan.training.guard.arguments import (
    by_name,
    disabled_policy,
    resolve_policy,
    unwrap_optimizer,
    validate,
    validate_monitor,
)
from torchnan.training.guard.bad_step import BadStepAnalyzer
from torchnan.training.guard.bad_step_handler import BadStepHandler
from torchnan.training.guard.decision import Decision
from torchnan.training.guard.errors import TrainingStopped
from torchnan.training.guard.event import StepEvent, StepResult
from torchnan.training.guard.late_steps import LateSteps
from torchnan.training.guard.model_update import ModelUpdate
from torchnan.training.guard.reporter import Reporter
from torchnan.training.guard.rollback import Rollback
from torchnan.training.guard.snapshots import Stateful, TrainingState
from torchnan.training.guard.step.buffers import Buffers
from torchnan.training.guard.step.early_steps import require_checked_steps
from torchnan.training.guard.step.forward_backward import ForwardBackward, StepFunction, StepRun, UnreadRun
from torchnan.training.guard.step.random_state import RandomState
from torchnan.training.guard.step.step_inputs import StepInputs
from torchnan.training.guard.step_observer import StepMonitor, StepObserver
from torchnan.training.guard.unchecked_steps import UncheckedSteps

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from torchnan.config.policy_keywords import PolicyKeywords


logger = logging.getLogger("torchnan")


class StepGuard:
    """Runs training steps so that a bad one leaves no trace.

    :meth:`step` runs forward and backward, checks the losses and, in one scan, all gradients, agrees with the other
    ranks, and only then steps the optimizer (scaler, scheduler). A bad step is replayed twice under
    :func:`torchnan.detect`, which names its origin; it is captured, and skipped, retried, rolled back or raised, as
    the policy says.

    For existing training loops: ``with guard.watch(batch): ...`` and ``if guard.ok_to_step(loss): ...``.

    With ``TORCHNAN=0`` in the environment of all ranks, steps are run, clipped and applied as without a guard.

    Args:
        model: the model to train; may be wrapped by DDP or sharded by FSDP2.
        optimizer: its optimizer.
        step_fn: ``step_fn(model, batch)`` returns the loss: a tensor of one element, a mean over the examples; or an
            object with ``.loss`` or ``["loss"]``, or a tuple that begins with it. It may run ``backward()`` itself
            and return the detached loss. It runs again in a replay. ``None``: only :meth:`watch` can be used, and
            nothing is replayed.
        scaler: a ``torch.amp.GradScaler``; steps that it skips to find its scale are not bad steps.
        scheduler: stepped after each step that is applied; one whose ``step()`` needs a metric, such as
            ``ReduceLROnPlateau``, belongs into ``also``, and the program steps it.
        policy: a :class:`torchnan.recovery.Policy`, the path of a TOML file, or a dict. Default: its defaults.
        group: process group of the ranks that have to agree. Default: the default group, if there is one.
        data: the position in the data, with ``state_dict()`` and ``load_state_dict()``, such as a
            ``torchdata.StatefulDataLoader``. A rollback restores it if ``rewind_data=True``: exactly to the
            snapshot's step with :meth:`step`; one batch later for the snapshot before the first step, and with
            :meth:`watch`.
        also: further modules, optimizers and other objects with ``state_dict()`` and ``load_state_dict()``, as a list
            or by name, that a rollback restores too: an average of the model, a discriminator and its optimizer, a
            scheduler that the program steps itself. Buffers of modules here are put back after a bad step, as those of
            the model are. With :meth:`step`, networks that ``step_fn`` names in its code need not be given for that.
        save, load: the user's own ``save(step)`` and ``load(step)``, in place of snapshots in memory.
        on_instability: called with the :class:`torchnan.recovery.StepEvent` before the action is taken; may return an
            action (``"skip"``, ``"rollback"``, ``"raise"``, ``"retry"``, ``"split"``) that overrides the policy's.
            The gravest action that any rank returns is taken on all. If it raises, that is logged, and the policy's
            action is taken.
        monitor: a :class:`torchnan.Monitor`, which records each step; one for each guard.
        options: fields of the policy that override ``policy``: ``captures="captures", snapshot_every=50``.

    Raises:
        OptionError: an option, a TOML file or a ``TORCHNAN_POLICY_...`` variable cannot be used; the optimizer
            computes losses itself (LBFGS, SAM), or hooks step it in the backward pass.
        OSError: a folder or the log cannot be written.

    Example::

        guard = torchnan.StepGuard(model, optimizer, lambda model, batch: model(**batch).loss, snapshot_every=100)
        for batch in loader:
            guard.step(batch)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        step_fn: StepFunction | None = None,
        *,
        scaler: torch.amp.GradScaler | None = None,
        scheduler: Any = None,
        policy: Policy | str | os.PathLike[str] | dict[str, Any] | None = None,
        group: dist.ProcessGroup | None = None,
        data: Stateful | None = None,
        also: Sequence[Any] | Mapping[str, Any] = (),
        save: Callable[[int], Any] | None = None,
        load: Callable[[int], Any] | None = None,
        on_instability: Callable[[StepEvent], Action | None] | None = None,
        monitor: StepMonitor | None = None,
        **options: Unpack[PolicyKeywords],
    ) -> None:
        self.policy = resolve_policy(policy, options)
        validate(model, optimizer, step_fn, scheduler, self.policy, save, load, on_instability)
        further = by_name(also)
        validate_monitor(monitor, self.policy, can_roll_back=save is not None)
        self._is_disabled = _C.is_disabled()
        policy = disabled_policy(self.policy) if self._is_disabled else self.policy
        self.model = model
        self.optimizer = unwrap_optimizer(optimizer)
        self.step_number = 0
        self._agreement = Agreement(group)
        self._failures = Failures(let_through=AgreementError)
        self._reporter = Reporter(model, self._agreement, policy.log, self._failures)
        modules = [(name, part) for name, part in further.items() if isinstance(part, torch.nn.Module)]
        buffers = Buffers(model, modules, step_fn)
        self._inputs = StepInputs(buffers, policy.keep)  # type: ignore[arg-type]
        self._update = ModelUpdate(model, self.optimizer, scaler, scheduler, policy)
        training = TrainingState(
            model, self._update.stateful_parts, data if policy.rewind_data else None, further, buffers.is_expected
        )
        self._observer = StepObserver() if monitor is None else monitor.make_observer(training, self._failures)
        # What a step need not ask for is not called in each step: a small one would notice.
        self._is_observed = bool(policy.instability) or type(self._observer) is not StepObserver
        self._is_capturing = policy.captures is not None
        self._takes_snapshots = policy.snapshot_every > 0
        self._forward_backward = ForwardBackward(
            model,
            self.optimizer,
            step_fn,
            self._update.scaled_step.scaler,
            self._update.norm_limit,
            self._agreement,
            is_oom_recoverable=policy.out_of_memory == "split",
            on_loss=self._observer.add_loss if self._is_observed else None,
            buffers=buffers,
        )
        if not self._is_disabled:
            require_checked_steps(self.optimizer, self._forward_backward.parameters)
        self._rollback = Rollback(policy, training, self._agreement, self._reporter.log, self._failures, save, load)
        self._analyzer = BadStepAnalyzer(
            policy, self._forward_backward, self._inputs, self._observer, self._agreement, self._failures
        )
        self._handler = BadStepHandler(
            policy,
            self._analyzer,
            self._observer,
            self._update,
            self._rollback,
            self._reporter,
            self._agreement,
            self._failures,
            on_instability,
        )
        self._unchecked_steps = UncheckedSteps(self._forward_backward)
        self._late_steps = LateSteps(
            policy, self._update, buffers, self._inputs, self._agreement, self._failures, self._settle
        )
        self._in_watch = False  # between watch() and ok_to_step()
        self._is_manual_loop = False  # the current step belongs to a loop of the user's
        self._has_started = False  # a step has begun, or the run was resumed

    # -- whole steps

    def step(self, *batches: Any) -> StepResult:
        """Runs one training step.

        Args:
            batches: the micro-batches of the step, usually one. Losses are averaged over them.

        Returns:
            The result of the step.

        Raises:
            TrainingStopped: the policy cannot recover from a bad step. The step has not been applied.
            AgreementError: another rank has died or hangs.
            UnkeepableError: a batch contains an object that a capture cannot store.
        """
        if not batches:
            raise TypeError("step() needs a batch, or the micro-batches of the step one after another")
        if self._is_disabled:
            return self._step_unguarded(list(batches))
        self._begin_step()
        for batch in batches:
            self._save(batch)
        run = self._forward_backward.start(list(batches), self._handler.parts)
        if self._late_steps.pending is not None and not self._settle(in_step=True):
            return self._finish(self._run_again()) if self._can_run_again() else self._leave_out(run)
        if isinstance(run, UnreadRun):
            late = self._late_steps.apply(self.step_number, run) if self._may_be_late() else None
            if late is not None:
                return late
            run = self._forward_backward.read(run)
        return self._finish(run)

    def _finish(self, run: StepRun, seen: Anomaly | None = None) -> StepResult:
        """Applies or handles a step that has been run.

        Args:
            run: the run.
            seen: what was wrong with an earlier run of the step, if this one may be good.
        """
        event = None
        while True:
            if run.anomaly is not None:
                self._analyzer.raise_locally(self.step_number, run.anomaly)
            anomaly, norm = self._agree(run)
            anomaly, seen = anomaly or seen, None
            if anomaly is None:
                return self._apply(run, norm, event)
            if self._is_left_to_scaler(anomaly):
                return self._let_scaler_skip(run, norm)
            event, decision = self._decide(run, anomaly, norm)
            if decision.action not in ("retry", "split"):
                return self._abandon_step(run, norm, event, decision)
            self._carry_out(event, decision)
            self._inputs.restore()
            run = self._run_again()

    def _run_again(self) -> StepRun:
        """Runs forward and backward of the current step from its saved batches."""
        self.optimizer.zero_grad(set_to_none=True)
        batches = [batch.restored() for batch in self._inputs.batches]
        return self._forward_backward.read(self._forward_backward.start(batches, self._handler.parts))

    def _leave_out(self, run: StepRun | UnreadRun) -> StepResult:
        """Leaves out a step that cannot be run again after an earlier one was undone."""
        logger.warning(
            "torchnan: step %d was left out: it has written to its %s, so it could not be run again after the step "
            "before it, which was bad. keep='copy' keeps batches as they were; max_undo_bytes=0 reads each verdict at "
            "once.",
            self.step_number,
            printable(str(self._inputs.mutated_tensor()), 200),
        )
        self.optimizer.zero_grad(set_to_none=True)
        self._inputs.buffers.restore()
        self._inputs.forget_batches()
        return StepResult(self.step_number, False, run.loss, math.nan)

    # -- steps whose verdict is read later

    def _may_be_late(self) -> bool:
        """Returns whether nothing but the optimizer depends on the verdict on the current step."""
        is_snapshot_due = self._takes_snapshots and self._rollback.ends_interval(self.step_number)
        return not (self._is_observed or is_snapshot_due or self._handler.parts > 1)

    def _settle(self, *, in_step: bool = False) -> bool:
        """Reads the verdict on the step that was applied without one, if there is such a step. Its device has undone a
        bad one, which is run again and handled as if its verdict had been read at once.

        Args:
            in_step: whether the next step has been run.

        Returns:
            False if it was bad. The next step must be run again: the gradients are gone.

        Raises:
            TrainingStopped: the policy cannot recover from it.
        """
        late = self._late_steps.take()
        if late is None:
            return True
        run = self._forward_backward.read_late(late.run)
        if run.anomaly is None and not run.gradients.nonfinite_buffers:
            self._record_good_step(late.step, run, run.gradients.norm)
            late.result.resolve(StepResult(late.step, True, run.loss, run.gradients.norm))
            return True
        current, inputs, random = self.step_number, self._inputs.now(), RandomState.now()
        late.update.undo_on_host()
        self.step_number = late.step
        self._inputs.go_back_to(late.inputs)
        self._inputs.restore()
        try:
            result = self._finish(self._run_again(), run.anomaly)
        except TrainingStopped as stopped:
            late.result.resolve(StepResult(late.step, False, run.loss, run.gradients.norm, stopped.event))
            raise
        late.result.resolve(result)
        self._inputs.go_back_to(inputs)
        if self.step_number == late.step:
            self.step_number = current
            (inputs[0] if in_step else random).restore()
        elif in_step:  # rolled back
            self.step_number += 1
        if in_step:
            self._inputs.buffers.save()
        return False

    def _begin_step(self) -> None:
        if not self._has_started or (self._takes_snapshots and self._rollback.ends_interval(self.step_number)):
            self._take_snapshot_if_due()
        self.step_number += 1
        self._is_manual_loop = False
        self.optimizer.zero_grad(set_to_none=True)
        self._inputs.begin_step()
        if self._is_observed:
            self._observer.begin_step(self.step_number)

    def _take_snapshot_if_due(self) -> StepEvent | None:
        """Takes a snapshot if one is due. Returns an event instead if the ranks have diverged."""
        if not self._has_started:
            self._require_same_policy()
            self._rollback.require_no_leftovers()
            self._has_started = True
        if not self._handler.is_snapshot_due(self.step_number):
            return None
        diverged = self._handler.check_replicas(self.step_number)
        if diverged is None:
            self._rollback.take(self.step_number)
            return None
        event, decision = diverged
        self._carry_out(event, decision)
        return event

    def _require_same_policy(self) -> None:
        """Raises on every rank if the ranks would not act together."""
        fields = dataclasses.asdict(self.policy)
        differing = self._agreement.differing({name: fields[name] for name in sorted(fields.keys() - OWN_OF_A_RANK)})
        if differing:
            own = ", ".join(f"{name}={brief(fields[name])}" for name in sorted(differing))
            raise OptionError(
                f"the ranks have different policies: on rank {self._agreement.global_rank}, {own}. Give all ranks the "
                "same keywords, files and variables."
            )

    def _save(self, batch: Any) -> None:
        if self._is_capturing:
            self._analyzer.validate_batch(batch)
        self._inputs.add(batch, drawn_between=self._is_manual_loop)
        if self._is_observed:
            self._observer.add_batch(batch)

    def _agree(self, run: StepRun) -> tuple[Anomaly | None, float]:
        """Returns the worst anomaly of any rank, which may be an instability of the run, and the gradient norm."""
        anomaly, norm = self._forward_backward.agree(run)
        if self._is_observed:
            self._observer.add_run(run, norm, anomaly, self._update.lr_cut.factor)
            if anomaly is None or anomaly.kind is AnomalyKind.SCALER:
                anomaly = self._handler.find_instability(self.step_number, norm) or anomaly
        return anomaly, norm

    def _apply(self, run: StepRun, norm: float, event: StepEvent | None) -> StepResult:
        self._update.apply(norm)
        if self._is_observed:
            self._observer.end_step(skipped=False)
        self._inputs.forget_batches()
        step = self.step_number
        self._record_good_step(step, run, norm)
        # Not at the beginning of the next step, whose batch must not have been drawn yet.
        is_due = self._takes_snapshots and self._rollback.ends_interval(step)
        diverged = self._take_snapshot_if_due() if is_due else None
        return StepResult(step, True, run.loss, norm, diverged or event)

    def _step_unguarded(self, batches: list[Any]) -> StepResult:
        self.step_number += 1
        self.optimizer.zero_grad(set_to_none=True)
        run = self._forward_backward.run_unguarded(batches)
        self._update.apply(run.gradients.norm)
        return StepResult(self.step_number, True, run.loss, run.gradients.norm)

    def _record_good_step(self, step: int, run: StepRun, norm: float) -> None:
        if run.gradients.nonfinite_buffers:  # such a buffer would make every step look bad
            self._late_steps.exclude()
        self._handler.record_good_step(step, run.loss_values)
        if self._update.record_good_step(norm):
            self._reporter.log.record("learning_rate", step=step, lr_factor=1.0, reason="the ramp has ended")

    # -- steps of a loop of the user's

    @contextlib.contextmanager
    def watch(self, batch: Any) -> Iterator[None]:
        """Wraps forward and backward of one micro-batch in a training loop of your own. The first one after
        :meth:`ok_to_step` begins a step."""
        if not self._in_watch:
            self._settle()
            if not self._is_disabled:
                self._take_snapshot_if_due()
                self._inputs.begin_step()
            self.step_number += 1
            self._in_watch = self._is_manual_loop = True
            self._observer.begin_step(self.step_number)
            self._forward_backward.forget_unscaled()
            self._update.lr_cut.end_step()  # the optimizer may have failed in the last one
        if self._is_disabled:
            yield
            return
        self._unchecked_steps.note_batch()
        self._save(batch)
        early_steps = self._forward_backward.early_steps
        early_steps.begin_refusing()
        try:
            yield
        finally:
            early_steps.end_refusing()

    def ok_to_step(self, *losses: torch.Tensor) -> bool:
        """Returns whether the optimizer may step; call it after backward, before clipping.

        Args:
            losses: the losses of the micro-batches. Without them, only the gradients are checked.

        Returns:
            True: step (gradients are unscaled, and clipped if ``max_norm`` is set). False: the step is bad, its
            gradients are dropped and buffers restored; continue with the next batch.

        Raises:
            TrainingStopped, AgreementError, UnkeepableError: as :meth:`step` does.
        """
        if not self._in_watch:
            raise RuntimeError(
                "ok_to_step() was called without a `with guard.watch(batch):` before it. Wrap forward and backward in "
                "watch(), then call ok_to_step() once in each step."
            )
        self._in_watch = False
        self._unchecked_steps.end()
        if self._is_disabled:
            self._update.clip_gradients(self._forward_backward.end_unguarded([]).gradients.norm)
            return True
        run = self._forward_backward.check_detached(losses)
        anomaly, norm = self._agree(run)
        if anomaly is None:
            self._update.clip_gradients(norm)
            self._observer.end_step(skipped=False)
            self._inputs.forget_batches()
            self._record_good_step(self.step_number, run, norm)
            return True
        if self._is_left_to_scaler(anomaly):
            self._update.scaled_step.mark_to_skip()
            self._observer.end_step(skipped=True)
            return True  # scaler.step() will not step, and scaler.update() lowers the scale
        self._abandon_step(run, norm, *self._decide(run, anomaly, norm))
        return False

    @property
    def in_step(self) -> bool:
        """Whether :meth:`watch` has begun a step that has not reached :meth:`ok_to_step`."""
        return self._in_watch

    def abandon(self) -> None:
        """Forgets a step that :meth:`watch` has begun and that will not reach :meth:`ok_to_step`."""
        self._in_watch = False
        self._inputs.forget_batches()

    # -- steps that a loss scaler skips to find its scale

    def _is_left_to_scaler(self, anomaly: Anomaly) -> bool:
        return anomaly.kind is AnomalyKind.SCALER and not self._handler.exceeds_scaler_skips()

    def _let_scaler_skip(self, run: StepRun, norm: float) -> StepResult:
        self._update.scaled_step.mark_to_skip()
        self._update.scaled_step.step()
        self._inputs.forget_batches()
        self._observer.end_step(skipped=True)
        return StepResult(self.step_number, False, run.loss, norm)

    # -- bad steps

    def _decide(self, run: StepRun, anomaly: Anomaly, norm: float) -> tuple[StepEvent, Decision]:
        return self._handler.decide(self.step_number, run, anomaly, norm, can_run_again=self._can_run_again)

    def _can_run_again(self) -> bool:
        """Returns whether exactly this step can be run again on every rank."""
        is_mutated = self._inputs.mutated_tensor() is not None
        return not self._is_manual_loop and self._agreement.all_reduce_max(int(is_mutated)) == 0

    def _abandon_step(self, run: StepRun, norm: float, event: StepEvent, decision: Decision) -> StepResult:
        self.optimizer.zero_grad(set_to_none=True)
        if not self._is_manual_loop:  # else scaler.update() may follow, which needs what was recorded
            self._forward_backward.forget_unscaled()
        self._inputs.buffers.restore()
        self._inputs.forget_batches()
        self._observer.end_step(skipped=True)
        self._carry_out(event, decision)
        return StepResult(event.step, False, run.loss, norm, event)

    def _carry_out(self, event: StepEvent, decision: Decision) -> None:
        restored = self._handler.carry_out(event, decision)
        if restored is not None:
            self.step_number = restored

    @property
    def events(self) -> list[StepEvent]:
        """The last 100 bad steps, with the actions taken."""
        self._settle()
        return list(self._reporter.events)

    @property
    def failures(self) -> dict[str, int]:
        """How often parts of the guard's own work failed; each part is warned about once."""
        return dict(self._failures.counts)

    def memory(self) -> dict[str, int]:
        """Returns bytes used between steps: by ``"buffers"`` saved for a replay, and by ``"snapshots"`` in memory."""
        return {"buffers": self._inputs.buffers.bytes_in_memory(), "snapshots": self._rollback.bytes_in_memory}

    def close(self) -> None:
        """Restores the optimizer: ends a reduction of the learning rate. Waits for the verdict on the last step."""
        self._settle()
        self._update.lr_cut.close()

    # -- restarts

    def resume(self) -> int | None:
        """Restores the newest snapshot in ``snapshot_folder`` that every rank has, as after a crash. Collective.

        Logs on every rank which snapshots are missing on which ranks.

        Returns:
            The step after which it was taken; ``None`` if there is none.

        Raises:
            OptionError: the ranks have different policies.
            TrainingStopped: no snapshot can be restored, or a rank or its device is not healthy.
        """
        self._settle()
        self._require_same_policy()
        self._has_started = True
        if not self._rollback.find():
            return None
        self.step_number = self._rollback.restore(0)
        return self.step_number

    def state_dict(self) -> dict[str, Any]:
        """Returns counters, budgets, recent norms and the learning rate's ramp, for a checkpoint. Waits for the verdict
        on the last step."""
        self._settle()
        return {
            "step_number": self.step_number,
            "decision": self._handler.state_dict(),
            **self._update.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self._settle()
        self.step_number = state["step_number"]
        self._handler.load_state_dict(state["decision"])
        self._update.load_state_dict(state)
