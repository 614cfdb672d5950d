"""StepGuard: a bad step is never applied, is kept, is run again, and the training goes on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from torchnan._load import _C
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement, AgreementError, Anomaly, AnomalyKind
from torchnan.monitor import Monitor
from torchnan.monitor.guard_feed import MonitorFeed
from torchnan.recovery.arguments import disabled_policy, resolve_policy, unwrap_optimizer, validate, validate_monitor
from torchnan.recovery.bad_step import BadStepAnalyzer
from torchnan.recovery.callback_request import CallbackRequest
from torchnan.recovery.clip import ClipThreshold
from torchnan.recovery.decision import Answer, Decision
from torchnan.recovery.errors import TrainingStopped
from torchnan.recovery.event import Action, StepEvent, StepResult
from torchnan.recovery.learning_rate import LearningRateCut
from torchnan.recovery.log import RecoveryLog
from torchnan.recovery.policy import Policy
from torchnan.recovery.reporter import Reporter
from torchnan.recovery.rollback import Rollback
from torchnan.recovery.snapshots import Stateful, TrainingState
from torchnan.recovery.step.forward_backward import ForwardBackward, StepFunction, StepRun
from torchnan.recovery.step.norm_limit import NormLimit
from torchnan.recovery.step.scaled_step import ScaledStep
from torchnan.recovery.step.step_inputs import StepInputs


class StepGuard:
    """Runs training steps so that a bad one leaves no trace.

    :meth:`step` runs forward and backward, looks at the losses and, in one scan, at all gradients, lets the ranks
    agree, and only then lets the optimizer (scaler, scheduler) step. A bad step is run again, twice, under
    :func:`torchnan.detect`, which names its origin; it is captured, and skipped, retried, rolled back or raised,
    as the policy says.

    For loops that cannot be turned inside out: ``with guard.watch(batch): ...`` and ``if guard.ok_to_step(loss): ...``.

    With ``TORCHNAN=0`` in the environment, on all ranks alike, steps are run, clipped and applied as without a guard.

    Args:
        model: what is trained; may be wrapped by DDP or sharded by FSDP2.
        optimizer: steps it.
        step_fn: ``step_fn(model, batch)`` returns the loss: a tensor of one element, a mean over the examples;
            something with ``.loss`` or ``["loss"]``, or a pair that begins with it, will do. It may run
            ``backward()`` itself and return the detached loss. It runs again in a replay. ``None``: only
            :meth:`watch` can be used, and nothing is replayed.
        scaler: a ``torch.amp.GradScaler``; steps that it skips in search of its scale are not bad steps.
        scheduler: stepped after each step that is applied.
        policy: a :class:`torchnan.recovery.Policy`, a path of a TOML file, or a dict. Default: its defaults.
        group: process group to agree over. Default: the default group, if there is one.
        data: what has the position in the data: ``state_dict()`` and ``load_state_dict()``, as
            ``torchdata.StatefulDataLoader`` has. Moved back with ``rewind_data=True``: exactly after the snapshot's
            step, with :meth:`step`; one batch later for the snapshot before the first step, and with :meth:`watch`.
        save, load: ``save(step)`` and ``load(step)`` of the user's own, in place of snapshots in memory.
        on_instability: called with the :class:`torchnan.recovery.StepEvent` before it is acted upon; may return an
            action (``"skip"``, ``"rollback"``, ``"raise"``, ``"retry"``, ``"split"``) that goes before the policy's.
            The gravest that any rank wants is done on all. If it raises, that is told, and the policy answers.
        monitor: a :class:`torchnan.Monitor`, which is fed with each step; one for each guard.
        options: fields of the policy, over ``policy``: ``captures="captures", snapshot_every=50``.

    Raises:
        OptionError: an option, a TOML file or a ``TORCHNAN_POLICY_...`` variable that cannot be used.
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
        save: Callable[[int], Any] | None = None,
        load: Callable[[int], Any] | None = None,
        on_instability: Callable[[StepEvent], Action | None] | None = None,
        monitor: Monitor | None = None,
        **options: Any,
    ) -> None:
        self.policy = resolve_policy(policy, options)
        validate(model, optimizer, step_fn, self.policy, save, load, on_instability)
        validate_monitor(monitor, self.policy, can_roll_back=save is not None)
        optimizer = unwrap_optimizer(optimizer)
        self.model = model
        self.optimizer = optimizer
        self.step_number = 0
        self._scaled = ScaledStep(optimizer, scaler)
        self._scheduler = scheduler
        self._failures = Failures(let_through=AgreementError)
        self._agreement = Agreement(group)
        self._callback_request = CallbackRequest(on_instability, self._agreement, self._failures)
        self._is_off = _C.is_disabled()
        policy = disabled_policy(self.policy) if self._is_off else self.policy
        self._log = RecoveryLog(policy.log if self._agreement.rank == 0 else None, self._failures)
        self._reporter = Reporter(self._agreement, self._log)
        self._norm_limit = NormLimit(policy.norm_limit, policy.norm_factor, policy.norm_window)
        survives = policy.out_of_memory == "split"
        self._forward_backward = ForwardBackward(
            model, optimizer, step_fn, self._scaled.scaler, self._norm_limit, self._agreement, survives
        )
        self._start = StepInputs(model, policy.keep)  # type: ignore[arg-type]
        self._decision = Decision(policy)
        self._lr_cut = LearningRateCut(optimizer, policy.lr_factor, policy.lr_ramp)
        self._clip = ClipThreshold(self._norm_limit, policy.max_norm, policy.clip_factor)
        parts: dict[str, Any] = {"optimizer": optimizer, "scaler": self._scaled.scaler, "scheduler": scheduler}
        training = TrainingState.of(model, parts, data if policy.rewind_data else None)
        self._rollback = Rollback(policy, training, self._agreement, self._log, self._failures, save, load)
        self._analyzer = BadStepAnalyzer(policy, self._forward_backward, self._start, self._agreement, self._failures)
        self.monitored = MonitorFeed(
            monitor, training, policy, self._agreement, self._lr_cut, self._clip, self._tell, self._failures
        )
        self._forward_backward.without_graph = self.monitored.without_graph
        self._analyzer.wants_float32 = self.monitored.wants_float32
        self._in_watch = False  # between watch() and ok_to_step()
        self._is_manual_loop = False  # of the program's own
        self._begun = False

    # -- the whole step

    def step(self, *batches: Any) -> StepResult:
        """Runs one training step.

        Args:
            batches: the micro-batches of the step, usually one. Losses are averaged over them.

        Returns:
            what has become of it.

        Raises:
            TrainingStopped: the policy has no answer to a bad step. Nothing of the step has been applied.
            AgreementError: another rank has died or hangs.
            UnkeepableError: a batch has something in it that a capture could not keep.
        """
        if not batches:
            raise TypeError("step() needs a batch, or the micro-batches of the step one after another")
        if self._is_off:
            return self._step_unguarded(list(batches))
        self._begin()
        for batch in batches:
            self._keep(batch)
        given, event = list(batches), None
        while True:
            run = self._forward_backward.run(given, self._parts())
            self._analyzer.raise_locally(self.step_number, run)
            worst, norm = self._forward_backward.agree(run)
            worst = self.monitored.look(run, norm, worst)
            if worst is None:
                return self._apply(run, norm, event)
            if worst.kind is AnomalyKind.SCALER and not self._decision.scaler_gives_up():
                return self._let_scaler_skip(run, norm)
            event, answer = self._judge(run, worst, norm)
            if answer.action not in ("retry", "split"):
                return self._abandon_step(run, norm, event, answer)
            self._apply_action(event, answer)
            given = [kept.restored() for kept in self._start.batches]
            self._start.restore()
            self.optimizer.zero_grad(set_to_none=True)

    def _begin(self) -> None:
        self._take_snapshot_if_due()
        self.step_number += 1
        self._is_manual_loop = False
        self.optimizer.zero_grad(set_to_none=True)
        self._start.note()
        self.monitored.begin(self.step_number)

    def _take_snapshot_if_due(self) -> StepEvent | None:
        """Not among bad steps: it may be the weights that make them bad. Returns what was found instead."""
        if not self._begun:
            self._rollback.require_no_leftovers()
            self._begun = True
        if self._decision.spent.consecutive > 0 or not self._rollback.due(self.step_number):
            return None
        if not self._rollback.replicas_differ():
            self._rollback.take(self.step_number)
            return None
        event = StepEvent(self.step_number, "replicas", "the weights of the ranks differ", cause="model")
        answer = self._decision.answer(event, can_roll_back=self._rollback.possible)
        self._apply_action(event, answer)
        return event

    def _keep(self, batch: Any) -> None:
        self._analyzer.validate_batch(batch)
        self._start.add(batch, drawn_between=self._is_manual_loop)
        self.monitored.keep(batch)

    def _parts(self) -> int:
        return int(2**self._decision.spent.splits)

    def _apply(self, run: StepRun, norm: float, event: StepEvent | None) -> StepResult:
        self._update(norm)
        self.monitored.end(skipped=False)
        self._note_good_step(norm)
        step = self.step_number
        found = self._take_snapshot_if_due()  # now, and not with the next step: its batch is not drawn yet
        return StepResult(step, True, run.loss, norm, found or event)

    def _step_unguarded(self, batches: list[Any]) -> StepResult:
        """TORCHNAN=0: the step as it would be without a guard."""
        self.step_number += 1
        self.optimizer.zero_grad(set_to_none=True)
        run = self._forward_backward.run_unguarded(batches)
        norm = run.measured.norm
        self._update(norm)
        return StepResult(self.step_number, True, run.loss, norm)

    def _update(self, norm: float) -> None:
        self._forward_backward.clip(norm, self._clip.most)
        self._scaled.take()
        if self._scheduler is not None:
            self._scheduler.step()

    def _note_good_step(self, norm: float) -> None:
        self._start.forget_batches()
        self._norm_limit.note(norm)
        self._decision.record_good_step()
        self._analyzer.record_good_step(self.step_number)
        if self._lr_cut.record_good_step():
            self._log.note("learning_rate", step=self.step_number, lr_factor=1.0, reason="the ramp has ended")

    # -- a loop of the program's own

    @contextlib.contextmanager
    def watch(self, batch: Any) -> Iterator[None]:
        """Around forward and backward of one micro-batch, in a loop of the program's own. The first one after
        :meth:`ok_to_step` begins a step."""
        if not self._in_watch:
            if not self._is_off:
                self._take_snapshot_if_due()
                self._start.note()
            self.step_number += 1
            self._in_watch = self._is_manual_loop = True
            self.monitored.begin(self.step_number)
        if not self._is_off:
            self._keep(batch)
        yield

    def ok_to_step(self, *losses: torch.Tensor) -> bool:
        """Whether the optimizer may step; call it after backward, before clipping.

        Args:
            losses: those of the micro-batches. Without them, only the gradients are looked at.

        Returns:
            True: step (gradients are unscaled, and clipped if ``max_norm`` is set). False: the step is bad, gradients
            are gone and buffers are as before; go on with the next batch.

        Raises:
            as :meth:`step` does.
        """
        if not self._in_watch:
            raise RuntimeError("ok_to_step() belongs after `with guard.watch(batch):`, once a step")
        self._in_watch = False
        if self._is_off:
            self._forward_backward.clip(self._forward_backward.end_unguarded([]).measured.norm, self._clip.most)
            return True
        run = self._forward_backward.look([self.monitored.without_graph(loss) for loss in losses])
        worst, norm = self._forward_backward.agree(run)
        worst = self.monitored.look(run, norm, worst)
        if worst is None:
            self._forward_backward.clip(norm, self._clip.most)
            self.monitored.end(skipped=False)
            self._note_good_step(norm)
            return True
        if worst.kind is AnomalyKind.SCALER and not self._decision.scaler_gives_up():
            self._scaled.mark_to_skip()
            self.monitored.end(skipped=True)
            return True  # scaler.step() will not step, and scaler.update() lowers the scale
        self._abandon_step(run, norm, *self._judge(run, worst, norm))
        return False

    @property
    def in_step(self) -> bool:
        """Whether :meth:`watch` has begun a step that has not come to :meth:`ok_to_step`."""
        return self._in_watch

    def abandon(self) -> None:
        """Forgets a step that :meth:`watch` has begun and that will not come to :meth:`ok_to_step`."""
        self._in_watch = False
        self._start.forget_batches()

    # -- a loss scaler in search of its scale

    def _let_scaler_skip(self, run: StepRun, norm: float) -> StepResult:
        self._scaled.mark_to_skip()
        self._scaled.take()
        self._start.forget_batches()
        self.monitored.end(skipped=True)
        return StepResult(self.step_number, False, run.loss, norm)

    # -- a bad step

    def _judge(self, run: StepRun, worst: Anomaly, norm: float) -> tuple[StepEvent, Answer]:
        """What it was, and what is to be done about it, the same on every rank."""
        event = self._analyzer.explain(self.step_number, run, worst, norm, self._parts())
        event.consecutive = self._decision.spent.consecutive + 1
        unstable = self.monitored.after_replay(event)
        wanted = self._callback_request.about(event)
        possible = {"can_roll_back": self._rollback.possible, "can_run_again": self._can_run_again()}
        return event, self._decision.answer(event, **possible, wanted=wanted, instability=unstable)

    def _can_run_again(self) -> bool:
        """Here and on every other rank."""
        return not self._is_manual_loop and self._agreement.all_reduce_max(int(self._start.written() is not None)) == 0

    def _abandon_step(self, run: StepRun, norm: float, event: StepEvent, answer: Answer) -> StepResult:
        self.optimizer.zero_grad(set_to_none=True)
        self._start.restore_buffers()
        self._scaled.forget()
        self._start.forget_batches()
        self.monitored.end(skipped=True)
        self._apply_action(event, answer)
        return StepResult(event.step, False, run.loss, norm, event)

    def _apply_action(self, event: StepEvent, answer: Answer) -> None:
        self._decision.note(answer)
        event.action, event.reason = answer.action, answer.reason
        if answer.action == "rollback":
            try:
                event.snapshot = self.step_number = self._rollback.restore(self._decision.snapshots_back())
            except TrainingStopped as stopped:
                event.action, event.reason = "raise", str(stopped)
                self._tell(event)
                raise TrainingStopped(str(event), stopped.reason, event) from stopped
            event.lr_factor = self._lr_cut.cut()
            self._analyzer.record_good_step(self.step_number)
        self._tell(event)
        if answer.action == "raise":
            raise TrainingStopped(str(event), answer.exit_reason, event)

    def _tell(self, event: StepEvent) -> None:
        self._reporter.tell(event, self._forward_backward.device)

    @property
    def events(self) -> list[StepEvent]:
        """The last 100 bad steps, and what was done about them."""
        return list(self._reporter.events)

    @property
    def failures(self) -> dict[str, int]:
        """Parts of the guard's own work that could not be done, and how often; each was warned about once."""
        return dict(self._failures.counts)

    def memory(self) -> dict[str, int]:
        """Bytes held between steps: ``"buffers"``, copied for a replay, and ``"snapshots"``, of those in memory."""
        buffers = sum(t.numel() * t.element_size() for t in self._start.buffers().values())
        return {"buffers": buffers, "snapshots": self._rollback.bytes_in_memory}

    def close(self) -> None:
        """Leaves the optimizer as it was: a learning rate that is still cut is so no longer."""
        self._lr_cut.close()

    # -- across restarts of the program

    def resume(self) -> int | None:
        """Goes back to the newest snapshot in ``snapshot_folder``, as after a crash.

        Returns:
            the step after which it was taken; ``None`` if there is none.
        """
        self._begun = True
        if not self._rollback.possible:
            return None
        self.step_number = self._rollback.restore(0)
        return self.step_number

    def state_dict(self) -> dict[str, Any]:
        """Counters, budgets, norms and the learning rate's ramp, for a checkpoint."""
        return {
            "step_number": self.step_number,
            "decision": self._decision.state_dict(),
            "tripwire": self._norm_limit.state_dict(),
            "learning_rate": self._lr_cut.state_dict(),
            "clip": self._clip.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.step_number = state["step_number"]
        self._decision.load_state_dict(state["decision"])
        self._norm_limit.load_state_dict(state["tripwire"])
        self._lr_cut.load_state_dict(state["learning_rate"])
        self._clip.load_state_dict(state["clip"])
