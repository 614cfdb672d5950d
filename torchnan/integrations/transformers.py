"""NaNCallback: StepGuard as a callback of the Trainer of Transformers."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError("torchnan.integrations.transformers needs Transformers: pip install transformers") from error

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.policy import Action
from torchnan.config.text import type_name
from torchnan.integrations.framework_monitor import with_step_defaults
from torchnan.integrations.frozen_scaler import FrozenScaler
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.step.forward_backward import loss_of
from torchnan.training.guard.step.gradients import describe_nonfinite, gradients_of, measure
from torchnan.training.guard.step.stepped_parameters import named_parameters
from torchnan.training.guard.step_guard import StepGuard
from torchnan.training.monitor.guard_feed import StepDefaults

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from torchnan.integrations.keywords import TransformersKeywords


class NaNCallback(TrainerCallback):
    """Checks losses and gradients before each optimizer step of a Trainer. A bad step is replayed, which names its
    origin, and captured if there is a folder for captures; weights, optimizer and learning rate stay unchanged, and
    training continues as the policy says.

    The keyword arguments of the model's forward pass are saved for each micro-batch. The replay runs the model on them,
    and backward from the loss in its output. A loss that is computed elsewhere cannot be replayed
    (``label_smoothing_factor``, ``compute_loss_func``, your own ``compute_loss``): set ``replay=False`` then. Terms
    that a ``compute_loss`` adds to the model's own loss are missing in the replay, which may be finite for that reason.

    The Trainer clips gradients before it calls callbacks, which makes all of them non-finite if one was, whatever
    ``max_grad_norm`` is. ``event.seen`` may therefore list more gradients than were non-finite, and bits cannot be
    compared. The replay does not clip: its origin is exact, and a note of the event lists the non-finite gradients.

    Args:
        policy_options: options of :class:`torchnan.StepGuard`: ``policy``, ``on_instability``, ``monitor``, and fields
            of the policy.

    Raises:
        OptionError: at the start of training, for options that cannot be used, or not with those of the Trainer:
            ``norm_limit`` and ``norm_factor`` need ``max_grad_norm=0``.
        ValueError: at the start of training with DeepSpeed or ``torch.nn.DataParallel``; at the first step, if there
            is no loss to replay the step with.
        TrainingStopped: in training, if the policy cannot recover from a bad step; it ends ``train()``.

    Example::

        callback = NaNCallback(captures="captures", snapshot_every=100)
        trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[callback])
        trainer.train()
        print(*callback.events)
    """

    def __init__(self, **policy_options: Unpack[TransformersKeywords]) -> None:
        self.guard: StepGuard | None = None
        self._guard: StepGuard  # the same; set at the start of training
        self._user_on_instability = policy_options.pop("on_instability", None)
        self._options: dict[str, Any] = {**policy_options}
        self._losses: list[torch.Tensor] = []
        # weight of the model's loss in the tensor that backward() was called on
        self._weight: torch.Tensor | None = None
        self._watching = contextlib.ExitStack()
        self._hooks: list[Any] = []
        self._in_replay = False
        self._nonfinite_in_replay = ""
        self._frozen_scaler = FrozenScaler(None)
        self._scaler: torch.amp.GradScaler | None = None

    @property
    def events(self) -> list[StepEvent]:
        """The bad steps, as :attr:`torchnan.StepGuard.events`."""
        return [] if self.guard is None else self.guard.events

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Builds the guard around the objects that the Trainer has prepared, and hooks the model."""
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._remove_hooks()
        self._losses, self._weight = [], None
        _validate_arguments(args)
        self._scaler = scaler = getattr(optimizer, "scaler", None)
        defaults = StepDefaults(
            loss_of=self._loss_of_step,
            norm_of=_norm_before_clipping if args.max_grad_norm > 0 else lambda norm: norm,
            dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        )
        monitor = with_step_defaults(self._options.get("monitor"), defaults)
        options: dict[str, Any] = {**self._options, "on_instability": self._on_instability, "monitor": monitor}
        self.guard = self._guard = StepGuard(
            model,
            optimizer,
            self._rerun,
            scaler=scaler,
            scheduler=kwargs["lr_scheduler"],
            **options,
        )
        _validate_norm_limits(args, self._guard)
        self._guard.step_number = state.global_step  # the run may resume from a checkpoint
        if _C.is_disabled():  # then no hooks and no checks
            return
        self._frozen_scaler = FrozenScaler(scaler)
        before: Any = self._before_forward
        after: Any = self._after_forward
        if args.torch_compile:  # the compiler must not trace into the hooks
            before, after = map(torch.compiler.disable, (before, after))
        self._hooks = [
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after),
        ]

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks the step, and drops the gradients of a bad one."""
        if not self._hooks:
            return
        losses, self._losses = self._losses, []
        self._watching.close()
        if self._guard.policy.replay and self._weight is None:
            self._remove_hooks()
            raise ValueError(
                f"the model's own loss was not used in the backward pass of step {state.global_step + 1}: {_NO_LOSS}"
            )
        try:
            if self._guard.ok_to_step(*losses):
                return
        except BaseException:
            self._remove_hooks()
            raise
        finally:
            self._weight = None
        self._frozen_scaler.freeze(self._guard.optimizer)
        # Accelerate sets this for a step that the scaler skips, so that no scheduler steps.
        kwargs["optimizer"]._is_overflow = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restores the scaler after a bad step."""
        self._frozen_scaler.restore()
        kwargs["optimizer"]._is_overflow = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Removes the hooks from the model."""
        self._remove_hooks()

    def _remove_hooks(self) -> None:
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
                self._remove_hooks()
                raise ValueError(
                    f"the output of the model, a {type_name(output)}, has no loss in it: {_NO_LOSS}"
                ) from None
            return
        self._losses.append(loss.detach())
        if loss.requires_grad:
            loss.register_hook(self._record_weight)  # type: ignore[no-untyped-call]

    def _is_training(self, model: torch.nn.Module) -> bool:
        """Returns whether a forward pass belongs to a step, unlike those of evaluation, generation and replays."""
        return model.training and torch.is_grad_enabled() and not self._in_replay

    def _record_weight(self, gradient: torch.Tensor) -> None:
        self._weight = gradient.detach()

    # -- the replay

    def _rerun(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The step function of the guard: runs forward, and backward with the weight that the Trainer gave the loss."""
        args, kwargs = batch if isinstance(batch, tuple) else ((), batch)
        self._in_replay = True
        try:
            loss = loss_of(model(*args, **kwargs))
            loss.backward(self._weight)  # type: ignore[no-untyped-call]
        finally:
            self._in_replay = False
        gradients = gradients_of(named_parameters(model, self._guard.optimizer))
        bad = measure(gradients).nonfinite
        self._nonfinite_in_replay = (
            f"{len(bad)} of {len(gradients)}: {describe_nonfinite(gradients, bad)}" if bad else "none"
        )
        return loss.detach()

    def _loss_of_step(self, mean: float, parts: int) -> float:
        """Undoes the scaling of losses by the number of micro-batches (the Trainer) or of tokens (the model)."""
        if self._weight is None:
            return mean
        scaler = self._scaler
        return mean * parts * self._weight.item() / (1.0 if scaler is None else scaler.get_scale())

    def _on_instability(self, event: StepEvent) -> Action | None:
        if event.verdict is not None:
            event.same_bits = None  # the Trainer has clipped, the replay has not
        if event.what in ("gradient", "scaler"):
            note = "the Trainer clips gradients before callbacks see them, so one bad gradient makes all of them bad"
            unclipped = f"; in the replay, without clipping, {self._nonfinite_in_replay} were not finite"
            event.notes.append(note if event.verdict is None else note + unclipped)
        if event.verdict == "transient":
            event.notes.append("the replay lacks the terms that your compute_loss adds to the loss of the model")
        return None if self._user_on_instability is None else self._user_on_instability(event)


_NO_LOSS = (
    "NaNCallback needs it to run a bad step again. Where the loss is computed elsewhere (label_smoothing_factor, "
    "compute_loss_func, compute_loss of your own), give NaNCallback(replay=False)."
)


def _norm_before_clipping(norm: float) -> float:
    """Reads the norm from a local variable of the Trainer: the guard measures the one after clipping."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        found = frame.f_locals.get("grad_norm") if frame.f_globals.get("__name__") == "transformers.trainer" else None
        if found is not None:
            return float(found)
    return norm


def _validate_arguments(args: TrainingArguments) -> None:
    if args.deepspeed:
        raise ValueError("NaNCallback cannot guard the steps of DeepSpeed, which takes them inside its engine.")
    if args.n_gpu > 1:
        raise ValueError(
            "NaNCallback sees only parts of a batch under torch.nn.DataParallel, which the Trainer uses for "
            f"{args.n_gpu} GPUs in one process: start one process a GPU with torchrun."
        )


def _validate_norm_limits(args: TrainingArguments, guard: StepGuard) -> None:
    for name in ("norm_limit", "norm_factor"):
        value = getattr(guard.policy, name)
        if value is not None and args.max_grad_norm > 0:
            raise OptionError(
                f"{name}={value!r} cannot be used with TrainingArguments(max_grad_norm={args.max_grad_norm}): the "
                "Trainer clips before callbacks see the norm. Set max_grad_norm=0, and max_norm here to clip."
            )
