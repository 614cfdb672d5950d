"""NaNCallback: the step guard as a callback of the Trainer of Transformers."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError("torchnan.integrations.transformers needs Transformers: pip install transformers") from error

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.text import type_name
from torchnan.integrations.frozen_scaler import FrozenScaler
from torchnan.monitor.guard_feed import StepDefaults
from torchnan.recovery.event import Action, StepEvent
from torchnan.recovery.step.forward_backward import loss_of, named_parameters
from torchnan.recovery.step.gradients import describe_nonfinite, gradients_of, measure
from torchnan.recovery.step_guard import StepGuard


class NaNCallback(TrainerCallback):
    """Looks at losses and gradients before each optimizer step of a Trainer. A bad step is run again, which names its
    origin, is captured if there is a folder for that, and leaves weights, optimizer and learning rate as they were;
    then training goes on as the policy says.

    What is kept of a micro-batch are the keyword arguments of the model's forward pass. The replay runs the model on
    them, and the backward pass from the loss in its output. A loss that is computed elsewhere cannot be run again
    (``label_smoothing_factor``, ``compute_loss_func``, a ``compute_loss`` of your own): that needs ``replay=False``.
    What a ``compute_loss`` adds to the model's own loss is missing in the replay, which may be finite for that reason.

    The Trainer clips gradients before callbacks see them, which makes all of them bad where one was, whatever
    ``max_grad_norm`` is: what an event says was ``seen`` of gradients may be more than there was, and bits cannot be
    compared. The replay does not clip: its origin is exact, and a note of the event says which gradients were bad.

    Args:
        policy_options: of :class:`torchnan.StepGuard`: ``policy``, ``on_instability``, ``monitor``, and fields of the
            policy.

    Raises:
        OptionError: at the start of training, for options that cannot be used, also together with the Trainer's:
            ``norm_limit`` and ``norm_factor`` need ``max_grad_norm=0``.
        ValueError: at the start of training with DeepSpeed or ``torch.nn.DataParallel``; at the first step, if there
            is no loss to run the step again with.
        TrainingStopped: in training, if the policy has no answer to a bad step; it ends ``train()``.

    Example::

        callback = NaNCallback(captures="captures", snapshot_every=100)
        trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[callback])
        trainer.train()
        print(*callback.events)
    """

    def __init__(self, **policy_options: Any) -> None:
        self.guard: StepGuard | None = None
        self._guard: StepGuard  # the same, from the start of training on
        self._asked = policy_options.pop("on_instability", None)
        self._options = policy_options
        self._losses: list[torch.Tensor] = []
        self._weight: torch.Tensor | None = None  # of the model's loss in what backward() was called on
        self._watching = contextlib.ExitStack()
        self._hooks: list[Any] = []
        self._in_replay = False
        self._bad_in_replay = ""
        self._held = FrozenScaler(None)
        self._scaler: torch.amp.GradScaler | None = None

    @property
    def events(self) -> list[StepEvent]:
        """The bad steps, as :attr:`torchnan.StepGuard.events`."""
        return [] if self.guard is None else self.guard.events

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Builds the guard around what the Trainer has prepared, and hooks the model."""
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._leave()
        self._losses, self._weight = [], None
        _validate(args)
        self._scaler = scaler = getattr(optimizer, "scaler", None)
        options: dict[str, Any] = dict(on_instability=self._on_instability, **self._options)
        self.guard = self._guard = StepGuard(
            model,
            optimizer,
            self._run_again,
            scaler=scaler,
            scheduler=kwargs["lr_scheduler"],
            **options,
        )
        _refuse_norms_after_clipping(args, self._guard)
        self._guard.step_number = state.global_step  # the run may go on from a checkpoint
        self._guard.monitored.habits = StepDefaults(
            loss_of=self._loss_of_step,
            norm_of=_norm_before_clipping if args.max_grad_norm > 0 else lambda norm: norm,
            dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        )
        if _C.is_disabled():  # no hooks, no steps to look at
            return
        self._held = FrozenScaler(scaler)
        before: Any = self._before_forward
        after: Any = self._after_forward
        if args.torch_compile:  # the compiler is not to trace into them
            before, after = map(torch.compiler.disable, (before, after))
        self._hooks = [
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after),
        ]

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Looks at the step; a bad one is left without gradients."""
        if not self._hooks:
            return
        losses, self._losses = self._losses, []
        self._watching.close()
        if self._guard.policy.replay and self._weight is None:
            self._leave()
            raise ValueError(
                f"the model's own loss was not used in the backward pass of step {state.global_step + 1}: {_NO_LOSS}"
            )
        try:
            if self._guard.ok_to_step(*losses):
                return
        except BaseException:
            self._leave()
            raise
        finally:
            self._weight = None
        self._held.hold(self._guard.optimizer)
        # What Accelerate says of a step that the scaler skips: no scheduler steps.
        kwargs["optimizer"]._is_overflow = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After a bad step, puts back what the scaler has made of it."""
        self._held.release()
        kwargs["optimizer"]._is_overflow = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the hooks off the model."""
        self._leave()

    def _leave(self) -> None:
        self._watching.close()
        while self._hooks:
            self._hooks.pop().remove()

    # -- hooks of the model

    def _before_forward(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_training(model):
            self._watching.close()
            self._watching.enter_context(self._guard.watch((args, kwargs) if args else kwargs))

    def _after_forward(self, model: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self._is_training(model):
            return
        try:
            loss = loss_of(output)
        except TypeError:
            if self._guard.policy.replay:
                self._leave()
                raise ValueError(
                    f"the output of the model, a {type_name(output)}, has no loss in it: {_NO_LOSS}"
                ) from None
            return
        self._losses.append(loss.detach())
        if loss.requires_grad:
            loss.register_hook(self._note_weight)  # type: ignore[no-untyped-call]

    def _is_training(self, model: torch.nn.Module) -> bool:
        """Evaluation and generation are no steps, and neither are replays."""
        return model.training and torch.is_grad_enabled() and not self._in_replay

    def _note_weight(self, gradient: torch.Tensor) -> None:
        self._weight = gradient.detach()

    # -- the replay

    def _run_again(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The step function of the guard: forward, and backward with the weight that the Trainer gave the loss."""
        args, kwargs = batch if isinstance(batch, tuple) else ((), batch)
        self._in_replay = True
        try:
            loss = loss_of(model(*args, **kwargs))
            loss.backward(self._weight)  # type: ignore[no-untyped-call]
        finally:
            self._in_replay = False
        gradients = gradients_of(named_parameters(model, self._guard.optimizer))
        bad = measure(gradients).bad
        self._bad_in_replay = f"{len(bad)} of {len(gradients)}: {describe_nonfinite(gradients, bad)}" if bad else "none"
        return loss.detach()

    def _loss_of_step(self, mean: float, parts: int) -> float:
        """The Trainer divides each loss by the number of micro-batches, or has the model do so by that of tokens."""
        if self._weight is None:
            return mean
        scaler = self._scaler
        return mean * parts * self._weight.item() / (1.0 if scaler is None else scaler.get_scale())

    def _on_instability(self, event: StepEvent) -> Action | None:
        if event.verdict is not None:
            event.same_bits = None  # the Trainer has clipped, the replay has not
        if event.what in ("gradient", "scaler"):
            note = "the Trainer clips gradients before it shows them, which spoils all of them where one is bad"
            unclipped = f"; unclipped, in the replay, {self._bad_in_replay} were not finite"
            event.notes.append(note if event.verdict is None else note + unclipped)
        if event.verdict == "transient":
            event.notes.append("what a compute_loss of your own adds to the loss of the model is not in the replay")
        return None if self._asked is None else self._asked(event)


_NO_LOSS = (
    "NaNCallback needs it to run a bad step again. Where the loss is computed elsewhere (label_smoothing_factor, "
    "compute_loss_func, compute_loss of your own), give NaNCallback(replay=False)."
)


def _norm_before_clipping(norm: float) -> float:
    """The Trainer has it in a variable when it calls; the one that the guard has found is after clipping."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        found = frame.f_locals.get("grad_norm") if frame.f_globals.get("__name__") == "transformers.trainer" else None
        if found is not None:
            return float(found)
    return norm


def _validate(args: TrainingArguments) -> None:
    if args.deepspeed:
        raise ValueError("NaNCallback cannot guard the steps of DeepSpeed, which takes them inside its engine.")
    if args.n_gpu > 1:
        raise ValueError(
            "NaNCallback sees only parts of a batch under torch.nn.DataParallel, which the Trainer uses for "
            f"{args.n_gpu} GPUs in one process: start one process a GPU with torchrun."
        )


def _refuse_norms_after_clipping(args: TrainingArguments, guard: StepGuard) -> None:
    for name in ("norm_limit", "norm_factor"):
        value = getattr(guard.policy, name)
        if value is not None and args.max_grad_norm > 0:
            raise OptionError(
                f"{name}={value!r} cannot be used with TrainingArguments(max_grad_norm={args.max_grad_norm}): the "
                "Trainer clips before callbacks see the norm. Set max_grad_norm=0, and max_norm here to clip."
            )
