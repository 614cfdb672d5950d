"""Runs forward and backward of one step over all its micro-batches, and checks the result."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from torchnan._load import _C
from torchnan.config.text import printable, type_name
from torchnan.detection import shards
from torchnan.detection.errors import NonFiniteError
from torchnan.detection.introspection import raised_at
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.step.early_steps import EarlySteps
from torchnan.training.guard.step.gradients import (
    GradientStats,
    average_gradients,
    gradients_of,
    measure_gradients,
    plain_norm,
    stats_of,
)
from torchnan.training.guard.step.lockstep import Lockstep
from torchnan.training.guard.step.micro_batches import split
from torchnan.training.guard.step.norm_limit import NormLimit
from torchnan.training.guard.step.random_state import RandomState
from torchnan.training.guard.step.step_check import loss_anomaly, tensor_anomaly
from torchnan.training.guard.step.stepped_parameters import SteppedParameters

logger = logging.getLogger("torchnan")

StepFunction = Callable[[torch.nn.Module, Any], Any]

_NO_MEMORY = ("can't allocate memory", "not enough memory")
_AFTER_ALL = 0xFFFF  # later than any micro-batch: the report of the rank that ran out of memory itself comes first
_NONFINITE, _MISSING = 1, 2  # state of a rank's gradients before they are averaged


class CheckedBuffers(Protocol):
    """Buffers that a step may have made non-finite."""

    def to_check(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the floating-point buffers as they are now, by name."""

    def spoiled(self, nonfinite: Sequence[str]) -> list[str]:
        """Returns those of the non-finite ones that were finite before the step."""


@dataclasses.dataclass(frozen=True)
class _Losses:
    losses: tuple[torch.Tensor, ...]

    @property
    def loss(self) -> torch.Tensor | None:
        """Mean of the losses, or ``None`` if there are none."""
        if len(self.losses) < 2:
            return self.losses[0] if self.losses else None
        return torch.stack([loss.reshape(()) for loss in self.losses]).mean()


@dataclasses.dataclass(frozen=True)
class StepRun(_Losses):
    """The result of running a step on this rank.

    Attributes:
        losses: the detached loss of each micro-batch.
        anomaly: what is wrong with it, or ``None``.
        gradients: statistics of its gradients.
        loss_values: the losses as numbers.
    """

    anomaly: Anomaly | None
    gradients: GradientStats
    loss_values: tuple[float | complex, ...] = ()


@dataclasses.dataclass(frozen=True)
class UnreadRun(_Losses):
    """A step that a device is running. Its losses, gradients and buffers are being measured.

    Attributes:
        losses: the detached loss of each micro-batch.
        buffers: the buffers that are measured, by name.
        measurement: asks the device.
    """

    buffers: Sequence[tuple[str, torch.Tensor]]
    measurement: _C.StepMeasurement


class ForwardBackward:
    """Runs a step up to the point where the optimizer would step.

    Args:
        model, optimizer: the model and its optimizer.
        step_fn: ``step_fn(model, batch)`` returns the loss; see :class:`torchnan.StepGuard`.
        scaler: an enabled ``torch.amp.GradScaler``, or ``None``.
        norm_limit: limits on the gradient norm.
        agreement: agreement with the other ranks.
        is_oom_recoverable: reduce gradients only after all ranks have reported that they have them, so that a rank
            that runs out of memory does not leave the others waiting.
        on_loss: called with each loss before its backward pass, unless it is ``None``.
        buffers: the buffers to check along with the gradients; ``None`` for none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        step_fn: StepFunction | None,
        scaler: torch.amp.GradScaler | None,
        norm_limit: NormLimit,
        agreement: Agreement,
        *,
        is_oom_recoverable: bool,
        on_loss: Callable[[torch.Tensor], None] | None = None,
        buffers: CheckedBuffers | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step_fn = step_fn
        self._scaler = scaler
        self._agreement = agreement
        self._norm_limit = norm_limit
        self._reduces_itself = is_oom_recoverable and agreement.ranks > 1 and hasattr(model, "no_sync")
        self._on_loss = on_loss
        self._buffers = buffers
        self._stepped = SteppedParameters(model, optimizer)
        self._is_checked_before_reduction = False
        self._anomaly_before_reduction: Anomaly | None = None
        self._has_warned_of_backward = False
        self._lockstep: Lockstep | None = None
        self.early_steps = EarlySteps(self._stepped)

    @property
    def scale(self) -> float | None:
        """The scale of the loss; ``None`` without a scaler."""
        return None if self._scaler is None else self._scaler.get_scale()

    @property
    def gradients_arrive_reduced(self) -> bool:
        """Whether gradients have been averaged over the ranks before they are checked."""
        return self._agreement.ranks > 1 and not self._reduces_itself

    @property
    def waits_in_backward(self) -> bool:
        """Whether ranks wait for one another in backward, as with DDP and FSDP, which reduce gradients there."""
        reduces = hasattr(self.model, "no_sync") or hasattr(self.model, "set_requires_gradient_sync")
        return self.gradients_arrive_reduced and reduces

    @property
    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """The optimizer's parameters by name, as they are now."""
        return self._stepped.now()

    def start(
        self,
        batches: list[Any],
        parts: int = 1,
        randoms: Sequence[RandomState | None] = (),
        after_backward: Callable[[], None] | None = None,
        in_lockstep: bool = False,
    ) -> StepRun | UnreadRun:
        """Runs forward and backward, and checks the result on this rank. One on a device that can undo a step is left
        unread, for :meth:`read`.

        Args:
            batches: the micro-batches.
            parts: number of parts that each micro-batch is split into.
            randoms: random states to restore before each micro-batch; ``None`` leaves them as they are.
            after_backward: called once all gradients are computed, before a scaler unscales them.
            in_lockstep: before the last backward pass, in which the ranks may wait for one another, find out whether
                all of them come to it; raise if one does not.
        """
        losses: list[torch.Tensor] = []
        if self._scaler is not None:
            self.forget_unscaled()
        self._lockstep = Lockstep(self._agreement) if in_lockstep and not self._reduces_itself else None
        self.early_steps.begin_refusing()
        try:
            self._run_micro_batches(batches, parts, randoms, losses)
            if after_backward is not None:
                after_backward()
            memory, micro_batch = None, 0
        except Exception as error:
            if self._lockstep is not None:
                self._lockstep.leave()
            if not isinstance(error, MemoryError | RuntimeError) or not _is_out_of_memory(error):
                if in_lockstep and self._reduces_itself:
                    self._agreement.all_reduce_max(_MISSING)
                raise
            micro_batch = len(losses)
            memory = _describe(error)  # not the error itself: its traceback references the step's tensors
        finally:
            self.early_steps.end_refusing()
        if memory is None and self._reduces_itself:
            memory, micro_batch = self._reduce_gradients(), _AFTER_ALL
        elif memory is not None and self._reduces_itself:
            self._agreement.all_reduce_max(_MISSING)
        if memory is not None:
            self.optimizer.zero_grad(set_to_none=True)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
            anomaly = Anomaly(AnomalyKind.OUT_OF_MEMORY, memory, micro_batch, self._agreement.global_rank)
            # As if measured: the ranks that have gradients sum their norms over all ranks if those are sharded.
            return StepRun(tuple(losses), anomaly, measure_gradients(self.parameters))
        return self._measure(losses)

    def forget_unscaled(self) -> None:
        """Drops what the scaler has recorded of the gradients of an earlier run, which was not applied."""
        if self._scaler is not None:
            self._scaler._per_optimizer_states.pop(id(self.optimizer), None)

    def run_unguarded(self, batches: list[Any]) -> StepRun:
        """Runs forward and backward without checks, for ``TORCHNAN=0``."""
        losses: list[torch.Tensor] = []
        self._run_micro_batches(batches, 1, (), losses)
        return self.end_unguarded(losses)

    def end_unguarded(self, losses: list[torch.Tensor]) -> StepRun:
        """Unscales the gradients and computes their norm with PyTorch's own functions, for ``TORCHNAN=0``."""
        if self._scaler is not None:
            unscale_once(self._scaler, self.optimizer)
        return StepRun(tuple(losses), None, GradientStats(norm=plain_norm(gradients_of(self.parameters))))

    def check_detached(self, losses: Sequence[torch.Tensor]) -> StepRun:
        """Checks a step that user code has run: reports its losses to ``on_loss``, then does as :meth:`check`."""
        if self._on_loss is not None:
            for loss in losses:
                self._on_loss(loss)
        return self.check([loss.detach() for loss in losses])

    def check(self, losses: list[torch.Tensor]) -> StepRun:
        """Checks detached losses, and the gradients and buffers in one scan."""
        return self.read(self._measure(losses))

    def read(self, run: StepRun | UnreadRun) -> StepRun:
        """Waits for the device, and checks what it has measured."""
        return self._read(run, self._gradient_anomaly) if isinstance(run, UnreadRun) else run

    def read_late(self, run: UnreadRun) -> StepRun:
        """Does as :meth:`read` for an earlier step, whose gradients do not exist any more."""
        return self._read(run, self._late_gradient_anomaly)

    def _read(self, run: UnreadRun, gradient_anomaly: Callable[[tuple[str, ...]], Anomaly | None]) -> StepRun:
        stats, values = stats_of(*run.measurement.stats()), run.measurement.loss_values()
        return self._judge(run.losses, values, stats, gradient_anomaly(stats.nonfinite), run.buffers)

    def _measure(self, losses: list[torch.Tensor]) -> StepRun | UnreadRun:
        if self._scaler is not None:
            unscale_once(self._scaler, self.optimizer)
        buffers = [] if self._buffers is None else self._buffers.to_check()
        parameters = self._stepped.now()
        if not self._is_checked_before_reduction:
            measurement = _C.begin_measuring(parameters, list(buffers), losses)
            if measurement is not None:
                return UnreadRun(tuple(losses), buffers, measurement)
        stats = measure_gradients(parameters, self._agreement, buffers)
        if stats.tensors == 0:
            self._warn_of_no_gradient()
        if self._is_checked_before_reduction:
            gradient_anomaly = self._anomaly_before_reduction
            self._is_checked_before_reduction, self._anomaly_before_reduction = False, None
        else:
            gradient_anomaly = self._gradient_anomaly(stats.nonfinite) if stats.nonfinite else None
        values: tuple[float | complex, ...] | None = _C.loss_values(losses)
        if values is None:  # a loss may hold its value elsewhere, as DTensor does
            with detection_paused():
                values = tuple(shards.local(loss).item() for loss in losses)
        return self._judge(tuple(losses), values, stats, gradient_anomaly, buffers)

    def _judge(
        self,
        losses: tuple[torch.Tensor, ...],
        values: tuple[float | complex, ...],
        stats: GradientStats,
        gradient_anomaly: Anomaly | None,
        buffers: Sequence[tuple[str, torch.Tensor]],
    ) -> StepRun:
        anomaly = loss_anomaly(values, self._agreement) or gradient_anomaly
        if stats.nonfinite_buffers and (anomaly is None or anomaly.kind > AnomalyKind.BUFFER):
            anomaly = self._buffer_anomaly(buffers, stats.nonfinite_buffers) or anomaly
        return StepRun(losses, anomaly, stats, values)

    def _buffer_anomaly(self, buffers: Sequence[tuple[str, torch.Tensor]], nonfinite: Sequence[str]) -> Anomaly | None:
        """Returns the anomaly of buffers that this step has made non-finite."""
        assert self._buffers is not None
        spoiled = self._buffers.spoiled(nonfinite)
        prefix = f"{len(spoiled)} of {len(buffers)} buffers are not finite after the forward pass: "
        return tensor_anomaly(buffers, spoiled, self._agreement, prefix=prefix, kind=AnomalyKind.BUFFER)

    def agree(self, run: StepRun) -> tuple[Anomaly | None, float]:
        """Returns the worst anomaly of any rank and the gradient norm. Collective."""
        return self._agreement.agree_with_norm(run.gradients, run.anomaly, self._norm_limit.check)

    def _run_micro_batches(
        self, batches: list[Any], parts: int, randoms: Sequence[RandomState | None], losses: list[torch.Tensor]
    ) -> None:
        parts_of = [[(batch, 1.0)] for batch in batches] if parts == 1 else [split(batch, parts) for batch in batches]
        for i, pieces in enumerate(parts_of):
            random = randoms[i] if i < len(randoms) else None
            if random is not None:
                random.restore()
            for j, (piece, share) in enumerate(pieces, start=1):
                is_last = i + 1 == len(batches) and j == len(pieces)
                if is_last and not self._reduces_itself:
                    self._run_piece(piece, share / len(batches), losses, is_last=is_last)
                else:
                    with self._without_reduction():
                        self._run_piece(piece, share / len(batches), losses, is_last=is_last)

    def _run_piece(self, piece: Any, share: float, losses: list[torch.Tensor], *, is_last: bool) -> None:
        if self.step_fn is None:
            raise TypeError(
                "step() needs the step function: StepGuard(model, optimizer, step_fn). Without one, use "
                "`with guard.watch(batch):` and guard.ok_to_step(loss) in your own loop."
            )
        loss = loss_of(self.step_fn(self.model, piece))
        if self._on_loss is not None:
            self._on_loss(loss)
        losses.append(loss.detach())
        if is_last and self._lockstep is not None:
            self._lockstep.arrive()
        if not loss.requires_grad:
            return
        scaled = loss if share == 1.0 else loss * share
        (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]

    def _warn_of_no_gradient(self) -> None:
        """Warns once: there is nothing to check."""
        if self._has_warned_of_backward:
            return
        self._has_warned_of_backward = True
        logger.warning(
            "torchnan: after backward no parameter of the optimizer has a gradient, so this step trains nothing, and "
            "nothing is checked. Return the loss with its graph, or call loss.backward() in step_fn. Hooks that use "
            "gradients and free them in the backward pass cannot be guarded."
        )

    def _without_reduction(self) -> contextlib.AbstractContextManager[Any]:
        no_sync = getattr(self.model, "no_sync", None)
        return no_sync() if callable(no_sync) else contextlib.nullcontext()

    def _reduce_gradients(self) -> str | None:
        """Averages the gradients over the ranks. Returns an error text if another rank has none.

        Non-finite gradients are attributed to their ranks first: the mean is non-finite on all of them.
        """
        nonfinite = measure_gradients(self.parameters).nonfinite
        worst = self._agreement.all_reduce_max(_NONFINITE if nonfinite else 0)
        if worst == _MISSING:
            return "another rank has run out of memory"
        self._is_checked_before_reduction = worst == _NONFINITE
        self._anomaly_before_reduction = self._gradient_anomaly(nonfinite)
        average_gradients(self.parameters, self._agreement)
        return None

    def _gradient_anomaly(self, nonfinite: tuple[str, ...]) -> Anomaly | None:
        if not nonfinite:
            return None
        gradients = gradients_of(self.parameters)
        kind = AnomalyKind.GRADIENT if self._scaler is None else AnomalyKind.SCALER
        prefix = f"{len(nonfinite)} of {len(gradients)} gradients are not finite: "
        return tensor_anomaly(gradients, nonfinite, self._agreement, prefix=prefix, kind=kind)

    def _late_gradient_anomaly(self, nonfinite: tuple[str, ...]) -> Anomaly | None:
        if not nonfinite:
            return None
        names = ", ".join(printable(name, 200) for name in nonfinite[:5])
        text = f"{len(nonfinite)} gradients were not finite: {names}{', ...' if len(nonfinite) > 5 else ''}"
        return Anomaly(AnomalyKind.GRADIENT, text, 0, self._agreement.global_rank)


def loss_of(returned: Any) -> torch.Tensor:
    """Returns the loss from the result of a step function: the tensor itself, its ``.loss`` or ``["loss"]``, or the
    first item of a tuple.

    Raises:
        TypeError: the result has no loss.
    """
    loss = returned if isinstance(returned, torch.Tensor) else _loss_in(returned)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
        raise TypeError(
            f"step_fn(model, batch) returned a {type_name(loss)}{shape}: it must return the loss, a tensor of one "
            "element, or something with .loss or ['loss']."
        )
    return loss


def _loss_in(returned: Any) -> Any:
    if isinstance(returned, Mapping) and "loss" in returned:
        return returned["loss"]
    if hasattr(returned, "loss"):
        return returned.loss
    return returned[0] if isinstance(returned, list | tuple) and returned else returned


def unscale_once(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Unscales the gradients, unless user code has already done so in this step."""
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, NonFiniteError):
        return False
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in _NO_MEMORY)


def _describe(error: BaseException) -> str:
    """Returns the error's first line and the line of user code that raised it."""
    line = raised_at(error)
    site = f" (at {line[0]}:{line[1]})" if line else ""
    return printable(f"{(str(error) or type(error).__name__).splitlines()[0]}{site}", 1000)
