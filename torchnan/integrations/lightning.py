"""NaNCapture: the step guard as a callback of Lightning."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("torchnan.integrations.lightning needs Lightning: pip install lightning") from error

from torchnan.capture import load_capture
from torchnan.integrations.frozen_scaler import FrozenScaler
from torchnan.integrations.lightning_injection import Injection, capture_of
from torchnan.integrations.lightning_step import Schedulers, TrainingStep, validate
from torchnan.monitor.guard_feed import StepDefaults
from torchnan.recovery.event import StepEvent
from torchnan.recovery.step_guard import StepGuard


class NaNCapture(Callback):
    """Looks at losses and gradients before each optimizer step. A bad step is run again, which names its origin; it is
    captured, with its batches, weights and random states; and its gradients are gone before the optimizer would use
    them. Then training ends in good order, on all ranks, or goes on.

    A replay calls ``training_step`` again, three times at most: what it does besides computing the loss happens again,
    such as updates of metrics; what it logs is not logged again. Lightning's own counters do not know of bad steps:
    ``global_step`` and schedulers of ``interval="step"`` go on.

    Args:
        dirpath: folder for the captures. What is kept of a micro-batch are the arguments of ``training_step``.
        halt: a bad step sets ``trainer.should_stop``, as soon as ``min_steps`` and ``min_epochs`` let it be heard.
            With False training goes on as the policy says.
        replay: run a bad step again to name its origin.
        inject: folder of a capture, or ``"auto"`` for the first of this rank in ``dirpath``, if there is one: the
            captured weights and buffers are put into the module, and the captured batches and random states take the
            place of the first that would be trained on, so that the whole program meets the NaN again, under a
            debugger if need be. Needs the same ``accumulate_grad_batches``.
        policy_options: of :class:`torchnan.StepGuard`: ``policy``, ``on_instability``, ``monitor``, and fields of the
            policy. The default of ``keep`` is ``"copy"`` here.

    Raises:
        MisconfigurationException: at the start of training, for manual optimization, several optimizers, and others
            that it cannot work with.
        CaptureError: at the start of training, if ``inject`` cannot be read or is of another model.
        TrainingStopped: in training, if the policy has no answer to a bad step, as to weights that were bad before it.

    Example::

        trainer = lightning.Trainer(callbacks=[NaNCapture("captures")])
        trainer.fit(module, loader)

        # the step alone, in another program:
        capture = torchnan.load_capture("captures/rank-0-step-00000047")
        print(capture.replay(module, lambda module, arguments: module.training_step(*arguments)).finding)

        # the whole program, which meets the same NaN in its first step:
        trainer = lightning.Trainer(callbacks=[NaNCapture("captures", inject="auto")])
        trainer.fit(module, loader)
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        *,
        halt: bool = True,
        replay: bool = True,
        inject: str | os.PathLike[str] | None = None,
        **policy_options: Any,
    ) -> None:
        self.dirpath = os.fspath(dirpath)
        self.halt = halt
        self.inject = None if inject is None else os.fspath(inject)
        self.captures: list[str] = []
        self.guard: StepGuard | None = None
        self._guard: StepGuard  # the same, with _step and _held, from the start of training on
        self._step: TrainingStep
        self._held: FrozenScaler
        keep = {} if "policy" in policy_options or "keep" in policy_options else {"keep": "copy"}
        self._options = dict(captures=self.dirpath, replay=replay, **keep, **policy_options)
        self._loaded: dict[str, Any] | None = None
        self._losses: list[torch.Tensor] = []
        self._watching = contextlib.ExitStack()
        self._injection: Injection | None = None

    @property
    def nan_captured(self) -> bool:
        """Whether there is a capture, of this run or of the one whose checkpoint was loaded."""
        return bool(self.captures)

    @property
    def events(self) -> list[StepEvent]:
        """The bad steps of this run, as :attr:`torchnan.StepGuard.events`."""
        return [] if self.guard is None else self.guard.events

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints."""
        guard = self._loaded if self.guard is None else self.guard.state_dict()
        return {"nan_captured": self.nan_captured, "captures": list(self.captures), "guard": guard}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From one."""
        self.captures = list(state_dict["captures"])
        self._loaded = state_dict["guard"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Builds the guard, now that the strategy has its model and its optimizer."""
        validate(trainer, pl_module)
        self._step = TrainingStep(trainer)
        self._held = FrozenScaler(self._step.scaler)
        model: Any = trainer.model
        self.guard = self._guard = StepGuard(
            model,
            trainer.optimizers[0],
            self._step,
            scaler=self._step.scaler,
            scheduler=Schedulers(trainer) if trainer.lr_scheduler_configs else None,
            **self._options,
        )
        self._guard.monitored.habits = StepDefaults(
            batch_of=lambda arguments: arguments[0],  # without its index, which is another one for the same batch
            loss_of=lambda mean, parts: mean * parts,  # Lightning divides each by their number
            dtype=_DTYPES.get(str(trainer.precision)),
        )
        if self._loaded is not None:
            self._guard.load_state_dict(self._loaded)
        folder = capture_of(self.inject, self.dirpath, trainer.global_rank)
        if folder is not None:
            self._start_injection(trainer, folder)

    def _start_injection(self, trainer: Trainer, folder: Path) -> None:
        capture = load_capture(folder)
        self._injection = Injection(trainer, capture)
        self._guard.step_number = capture.step - 1

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keeps the micro-batch; the first of a step keeps what the step starts from."""
        self._watching.close()
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._guard.abandon()  # a step that was begun may have been given up, with its epoch
            self._losses = []
        arguments = self._step.arguments(batch, batch_idx)
        if self._injection is not None and (injected := self._injection.arguments(batch)) is not None:
            arguments = injected
            if not self._guard.in_step:
                self._injection.restore_random_states()
        self._watching.enter_context(self._guard.watch(arguments))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Keeps the loss, which a scaler has already scaled."""
        self._losses.append(loss.detach())

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The end of a micro-batch."""
        self._watching.close()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Looks at the step, before clipping; a bad one is left without gradients."""
        self._watching.close()
        losses, self._losses = self._losses, []
        if self._step.scaler is not None:
            losses = _unscaled(losses, self._step.scaler)
        try:
            if self._guard.ok_to_step(*losses):
                return
        finally:
            self._note_capture()
        self._held.hold(optimizer)
        trainer.should_stop = trainer.should_stop or self.halt

    def _note_capture(self) -> None:
        for event in self.events[-1:]:
            if event.capture is not None and event.capture not in self.captures:
                self.captures.append(event.capture)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a bad step, puts back what the scaler has made of it."""
        self._held.release()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets go of the loop."""
        self._watching.close()
        if self._injection is not None:
            self._injection.end()


_DTYPES = {
    "16-mixed": "float16",
    "16-true": "float16",
    "bf16-mixed": "bfloat16",
    "bf16-true": "bfloat16",
    "32-true": "float32",
}


def _unscaled(losses: list[torch.Tensor], scaler: torch.amp.GradScaler) -> list[torch.Tensor]:
    """Those that are infinite may be so because they were scaled: the scaler sees to that, by their gradients."""
    scale = scaler.get_scale()
    return [loss / scale for loss in losses if not loss.isinf()]
