"""NaNCapture: StepGuard as a callback of Lightning."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("torchnan.integrations.lightning needs Lightning: pip install lightning") from error

from torchnan.integrations.framework_monitor import with_step_defaults
from torchnan.integrations.frozen_scaler import FrozenScaler
from torchnan.integrations.lightning_injection import Injection, capture_of
from torchnan.integrations.lightning_step import Schedulers, TrainingStep, validate_trainer
from torchnan.training.capture import load_capture
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.step_guard import StepGuard
from torchnan.training.monitor.guard_feed import StepDefaults

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from torchnan.integrations.keywords import LightningKeywords


class NaNCapture(Callback):
    """Checks losses and gradients before each optimizer step. A bad step is replayed, which names its origin; it is
    captured, with its batches, weights and random states; and its gradients are dropped, so that the optimizer cannot
    use them. Then training stops in an orderly way on all ranks, or continues.

    A replay calls ``training_step`` again, up to three times. Its side effects, such as updates of metrics, happen
    again; its logging does not. Lightning's own counters ignore bad steps: ``global_step`` and schedulers of
    ``interval="step"`` advance.

    Args:
        dirpath: folder for the captures. The arguments of ``training_step`` are saved for each micro-batch.
        halt: a bad step sets ``trainer.should_stop``, which takes effect after ``min_steps`` and ``min_epochs``. With
            False training continues as the policy says.
        replay: replay a bad step to name its origin.
        inject: folder of a capture, or ``"auto"`` for the first one of this rank in ``dirpath``, if there is one. The
            captured weights and buffers are loaded into the module, and the captured batches and random states
            replace the first ones of training, so that the whole program makes the same NaN again, for example under
            a debugger. Needs the same ``accumulate_grad_batches``.
        policy_options: options of :class:`torchnan.StepGuard`: ``policy``, ``on_instability``, ``monitor``, and fields
            of the policy. ``keep`` defaults to ``"copy"`` here.

    Raises:
        MisconfigurationException: at the start of training, for manual optimization, several optimizers, and other
            unsupported configurations.
        CaptureError: at the start of training, if ``inject`` cannot be read or belongs to another model.
        TrainingStopped: in training, if the policy cannot recover from a bad step, such as after bad weights.

    Example::

        trainer = lightning.Trainer(callbacks=[NaNCapture("captures")])
        trainer.fit(module, loader)

        # the step alone, in another program:
        capture = torchnan.load_capture("captures/rank-0-step-00000047")
        print(capture.replay(module, lambda module, arguments: module.training_step(*arguments)).finding)

        # the whole program, which makes the same NaN in its first step:
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
        **policy_options: Unpack[LightningKeywords],
    ) -> None:
        self.dirpath = os.fspath(dirpath)
        self.halt = halt
        self.inject = None if inject is None else os.fspath(inject)
        self.captures: list[str] = []
        self.guard: StepGuard | None = None
        self._guard: StepGuard  # the same; set at the start of training, with _step and _frozen_scaler
        self._step: TrainingStep
        self._frozen_scaler: FrozenScaler
        keep = {} if "policy" in policy_options or "keep" in policy_options else {"keep": "copy"}
        self._options: dict[str, Any] = dict(captures=self.dirpath, replay=replay, **keep, **policy_options)
        self._loaded: dict[str, Any] | None = None
        self._losses: list[torch.Tensor] = []
        self._watching = contextlib.ExitStack()
        self._injection: Injection | None = None

    @property
    def nan_captured(self) -> bool:
        """Whether there is a capture, from this run or from the one whose checkpoint was loaded."""
        return bool(self.captures)

    @property
    def events(self) -> list[StepEvent]:
        """The bad steps of this run, as :attr:`torchnan.StepGuard.events`."""
        return [] if self.guard is None else self.guard.events

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for Lightning's checkpoints."""
        guard = self._loaded if self.guard is None else self.guard.state_dict()
        return {"nan_captured": self.nan_captured, "captures": list(self.captures), "guard": guard}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        self.captures = list(state_dict["captures"])
        self._loaded = state_dict["guard"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Builds the guard, now that the strategy has its model and its optimizer."""
        validate_trainer(trainer, pl_module)
        self._step = TrainingStep(trainer)
        self._frozen_scaler = FrozenScaler(self._step.scaler)
        defaults = StepDefaults(
            batch_of=lambda arguments: arguments[0],  # without batch_idx, which may differ for the same batch
            loss_of=lambda mean, parts: mean * parts,  # Lightning divides each loss by their number
            dtype=_DTYPES.get(str(trainer.precision)),
        )
        model: Any = trainer.model
        self.guard = self._guard = StepGuard(
            model,
            trainer.optimizers[0],
            self._step,
            scaler=self._step.scaler,
            scheduler=Schedulers(trainer) if trainer.lr_scheduler_configs else None,
            **{**self._options, "monitor": with_step_defaults(self._options.get("monitor"), defaults)},
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
        """Saves the micro-batch and, with the first of a step, the state before the step."""
        self._watching.close()
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._guard.abandon()  # the end of an epoch may have abandoned a step
            self._losses = []
        arguments = self._step.arguments(batch, batch_idx)
        if self._injection is not None and (injected := self._injection.arguments(batch)) is not None:
            arguments = injected
            if not self._guard.in_step:
                self._injection.restore_random_states()
        self._watching.enter_context(self._guard.watch(arguments))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Collects the loss, which a scaler has already scaled."""
        self._losses.append(loss.detach())

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the micro-batch."""
        self._watching.close()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Checks the step before clipping, and drops the gradients of a bad one."""
        self._watching.close()
        losses, self._losses = self._losses, []
        if self._step.scaler is not None:
            losses = _unscaled(losses, self._step.scaler)
        try:
            if self._guard.ok_to_step(*losses):
                return
        finally:
            self._record_capture()
        self._frozen_scaler.freeze(optimizer)
        trainer.should_stop = trainer.should_stop or self.halt

    def _record_capture(self) -> None:
        for event in self.events[-1:]:
            if event.capture is not None and event.capture not in self.captures:
                self.captures.append(event.capture)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Restores the scaler after a bad step."""
        self._frozen_scaler.restore()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends an unfinished micro-batch and the injection."""
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
    """Unscales losses. Drops infinite ones: scaling may have made them infinite, and the scaler checks their
    gradients."""
    scale = scaler.get_scale()
    return [loss / scale for loss in losses if not loss.isinf()]
