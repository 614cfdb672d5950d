"""NaNDetector: checks losses and gradients in a training loop of your own, after KempnerForge's class of that name."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

import torch
import torch.distributed as dist

from torchnan._load import _C
from torchnan.config.options import OptionError, integer_from, one_of, warn_deprecated
from torchnan.config.policy import POSITIVE, is_positive
from torchnan.config.text import brief, printable
from torchnan.detection import shards
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.errors import TrainingStopped
from torchnan.training.guard.step.gradients import GradientStats, gradients_of, measure_gradients, plain_norm
from torchnan.training.guard.step.norm_limit import NormLimit
from torchnan.training.guard.step.step_check import loss_anomaly, tensor_anomaly

logger = logging.getLogger("torchnan")

REACTIONS = ("warn", "skip", "raise")


@dataclasses.dataclass
class NaNState:
    """The counts of a detector.

    Attributes:
        consecutive_nans: number of bad steps in a row; 0 after a good one.
        total_nans: number of bad steps in the whole run.
        last_good_loss: the last finite loss, infinity before the first.
        last_good_step: its step.
        nan_steps: the first ``max_history`` bad steps.
    """

    consecutive_nans: int = 0
    total_nans: int = 0
    last_good_loss: float = float("inf")
    last_good_step: int = 0
    nan_steps: list[int] = dataclasses.field(default_factory=list)


class NaNDetector:
    """Checks for each step whether loss and gradients are finite, the same on all ranks, and counts bad steps.

    With ``TORCHNAN=0`` in the environment of all ranks, every step is good.

    Args:
        on_nonfinite: what a bad step does: ``"warn"`` (default) and ``"skip"`` log a warning and return False, so that
            the caller can skip the step; ``"raise"`` raises.
        max_consecutive: number of bad steps in a row at which :attr:`should_rollback` becomes True. Default 5.
        max_history: number of bad steps that ``state.nan_steps`` lists. Default 100.
        group: process group of the ranks that have to agree. Default: the default group, if there is one.
        norm_limit: a step with a larger gradient norm is bad. Default ``None``: no limit.
        norm_factor: so is one above this multiple of the mean of the last 100 good norms. Default ``None``.
        action: deprecated, the old name of ``on_nonfinite``.

    Raises:
        OptionError: (a ``ValueError``) a word or a number cannot be used.

    Example::

        detector = torchnan.NaNDetector(on_nonfinite="skip")
        for step, batch in enumerate(loader):
            loss = model(batch)
            loss.backward()
            if detector.check_loss(loss, step) and detector.check_gradients(model, step):
                optimizer.step()
            optimizer.zero_grad()
            if detector.should_rollback:
                break
    """

    def __init__(
        self,
        on_nonfinite: str = "warn",
        max_consecutive: int = 5,
        max_history: int = 100,
        *,
        group: dist.ProcessGroup | None = None,
        norm_limit: float | None = None,
        norm_factor: float | None = None,
        action: str | None = None,
    ) -> None:
        if action is not None:
            if not one_of("warn")(on_nonfinite):
                raise OptionError("action is an old name for on_nonfinite: give on_nonfinite alone.")
            warn_deprecated("the option action of NaNDetector is now called on_nonfinite.")
            on_nonfinite = action
        if not one_of(*REACTIONS)(on_nonfinite):
            known = ", ".join(map(repr, REACTIONS))
            raise OptionError(f"on_nonfinite={brief(on_nonfinite)} cannot be used: on_nonfinite takes one of {known}.")
        for name, value in (("max_consecutive", max_consecutive), ("max_history", max_history)):
            if not integer_from(1)(value):
                raise OptionError(f"{name}={brief(value)} cannot be used: {name} takes an integer of at least 1.")
        for name, limit in (("norm_limit", norm_limit), ("norm_factor", norm_factor)):
            if not is_positive(limit):
                raise OptionError(f"{name}={brief(limit)} cannot be used: {name} takes {POSITIVE}.")
        self.on_nonfinite = on_nonfinite
        self.max_consecutive = max_consecutive
        self.max_history = max_history
        self.state = NaNState()
        self._agreement = Agreement(group)
        self._norm_limit = NormLimit(norm_limit, norm_factor)
        self._gradients = GradientStats()
        self._norm = 0.0

    def check_loss(self, loss: float | torch.Tensor, step: int) -> bool:
        """Checks whether a loss is finite on every rank, and counts a bad step.

        Args:
            loss: a number, or a tensor of one element.
            step: its step.

        Returns:
            True if it is; False if it is not on any rank, with ``"warn"`` or ``"skip"``.

        Raises:
            TrainingStopped: (a ``RuntimeError``) it is not, and ``on_nonfinite="raise"``.
            AgreementError: another rank has died or hangs.
        """
        if _C.is_disabled():
            return True
        value = _number(loss)
        local = loss_anomaly([value], self._agreement)
        worst = self._agreement.agree(local)
        state = self.state
        if worst is None:
            state.consecutive_nans = 0
            state.last_good_loss, state.last_good_step = abs(value) if isinstance(value, complex) else value, step
            return True
        state.consecutive_nans += 1
        state.total_nans += 1
        if len(state.nan_steps) < self.max_history:
            state.nan_steps.append(step)
        return self._reject(f"NaN/Inf loss at step {step}", worst, local)

    def check_gradients(self, model: torch.nn.Module, step: int | None = None) -> bool:
        """Checks in one scan whether all gradients are finite and their norm is within limits, on every rank.

        Counts nothing: if a bad gradient is applied, the next loss is bad.

        Args:
            model: its parameters' gradients are checked, before or after clipping.
            step: step for the message.

        Returns:
            True if they are; False if they are not, with ``"warn"`` or ``"skip"``.

        Raises:
            TrainingStopped, AgreementError: as :meth:`check_loss` does.
        """
        parameters: list[tuple[str, torch.Tensor]] = [*model.named_parameters()]
        if _C.is_disabled():
            self._norm = plain_norm(gradients_of(parameters))
            return True
        self._gradients = measure_gradients(parameters, self._agreement)
        local = tensor_anomaly(gradients_of(parameters), self._gradients.nonfinite, self._agreement, prefix="in ")
        worst, self._norm = self._agreement.agree_with_norm(self._gradients, local, self._norm_limit.check)
        if worst is None:
            self._norm_limit.record(self._norm)
            return True
        kind = "Gradient spike" if worst.kind is AnomalyKind.NORM else "NaN/Inf gradient"
        return self._reject(kind if step is None else f"{kind} at step {step}", worst, local)

    @property
    def gradient_norm(self) -> float:
        """2-norm of the whole model's gradients in the last :meth:`check_gradients`, for
        ``torch.nn.utils.clip_grads_with_norm_``, which then needs no second pass over them."""
        return self._norm

    @property
    def gradient_absmax(self) -> float:
        """The largest magnitude of the gradients on this rank; NaN or infinity if they are non-finite."""
        return self._gradients.max_abs

    @property
    def bad_parameters(self) -> tuple[str, ...]:
        """Names of the parameters whose gradients were non-finite on this rank."""
        return self._gradients.nonfinite

    @property
    def should_rollback(self) -> bool:
        """Whether ``max_consecutive`` steps in a row were bad: time to restore an earlier checkpoint, but not the
        newest, which was written just before."""
        return self.state.consecutive_nans >= self.max_consecutive

    def reset(self) -> None:
        """Resets all counts, as after a rollback."""
        self.state = NaNState()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {**dataclasses.asdict(self.state), "tripwire": self._norm_limit.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`."""
        fields = {field.name: state[field.name] for field in dataclasses.fields(NaNState)}
        self.state = NaNState(**{**fields, "nan_steps": list(fields["nan_steps"])})
        self._norm_limit.load_state_dict(state["tripwire"])

    def _reject(self, what: str, worst: Anomaly, local: Anomaly | None) -> bool:
        """Raises or logs a bad step, as ``on_nonfinite`` says. Returns False."""
        state = self.state
        where = "" if self._agreement.ranks == 1 else f" on rank {worst.rank}"
        if where and local is None and worst.kind is not AnomalyKind.NORM:
            where = f" detected on another rank, rank {worst.rank}"
        good = f"last_good_loss={state.last_good_loss:.4f} at step {state.last_good_step}"
        if math.isinf(state.last_good_loss):
            good = "no good loss yet"
        text = f"{what}{where}: {worst.text} (consecutive={state.consecutive_nans}, total={state.total_nans}, {good})"
        text = printable(text, 1000)
        if self.on_nonfinite == "raise":
            raise TrainingStopped(text)
        logger.warning("%s", f"{text}: skip the optimizer step" if self.on_nonfinite == "skip" else text)
        return False


def _number(loss: float | torch.Tensor) -> float | complex:
    if not isinstance(loss, torch.Tensor):
        return loss if isinstance(loss, complex) else float(loss)
    if loss.numel() != 1:
        raise ValueError(f"check_loss takes a number or a tensor of one element, not one of shape {tuple(loss.shape)}")
    with detection_paused():
        value: float | complex = shards.local(loss.detach()).item()
    return value
