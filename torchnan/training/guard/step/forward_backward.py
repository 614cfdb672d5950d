"""Runs forward and backward of one step over all its micro-batches, and checks the result."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchnan._load import _C
from torchnan.config.text import printable, type_name
from torchnan.detection import shards
from torchnan.detection.errors import NonFiniteError
from torchnan.detection.introspection import clean, raised_at, unwrap
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.training.guard.step.gradient_average import average
from torchnan.training.guard.step.gradients import GradientStats, gradients_of, measure_gradients, plain_norm
from torchnan.training.guard.step.micro_batches import split
from torchnan.training.guard.step.norm_limit import NormLimit
from torchnan.training.guard.step.random_state import RandomState
from torchnan.training.guard.step.step_check import StepCheck

logger = logging.getLogger("torchnan")

StepFunction = Callable[[torch.nn.Module, Any], Any]

_NO_MEMORY = ("can't allocate memory", "not enough memory")
_AFTER_ALL = 0xFFFF  # later than any micro-batch: the report of the rank that ran out of memory itself comes first
_NONFINITE, _MISSING = 1, 2  # state of a rank's gradients before they are averaged


@dataclasses.dataclass(frozen=True)
class StepRun:
    """The result of running a step on this rank.

    Attributes:
        losses: the detached loss of each micro-batch.
        anomaly: what is wrong with it, or ``None``.
        gradients: statistics of its gradients.
        loss_values: the losses as numbers.
    """

    losses: tuple[torch.Tensor, ...]
    anomaly: Anomaly | None
    gradients: GradientStats
    loss_values: tuple[float | complex, ...] = ()

    @property
    def loss(self) -> torch.Tensor | None:
        """Mean of the losses, or ``None`` if there are none."""
        if len(self.losses) < 2:
            return self.losses[0] if self.losses else None
        return torch.stack([loss.reshape(()) for loss in self.losses]).mean()


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
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step_fn = step_fn
        self._scaler = scaler
        self._agreement = agreement
        self._norm_limit = norm_limit
        self._check = StepCheck(agreement)
        self._reduces_itself = is_oom_recoverable and agreement.ranks > 1 and hasattr(model, "no_sync")
        self._on_loss = on_loss
        self._parameters: list[tuple[str, torch.Tensor]] = []
        self._is_checked_before_reduction = False
        self._anomaly_before_reduction: Anomaly | None = None
        self._has_warned_of_backward = False

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
        """The optimizer's parameters by name; kept up to date with groups that are added to it."""
        count = 0
        for group in self.optimizer.param_groups:
            count += len(group["params"])
        if len(self._parameters) != count:
            self._parameters = named_parameters(self.model, self.optimizer)
        return self._parameters

    def run(
        self,
        batches: list[Any],
        parts: int = 1,
        randoms: Sequence[RandomState | None] = (),
        after_backward: Callable[[], None] | None = None,
    ) -> StepRun:
        """Runs forward and backward, and checks the result on this rank.

        Args:
            batches: the micro-batches.
            parts: number of parts that each micro-batch is split into.
            randoms: random states to restore before each micro-batch; ``None`` leaves them as they are.
            after_backward: called once all gradients are computed, before a scaler unscales them.
        """
        losses: list[torch.Tensor] = []
        if self._scaler is not None:
            self._scaler._per_optimizer_states.pop(id(self.optimizer), None)  # left by an earlier run of the step
        try:
            self._run_micro_batches(batches, parts, randoms, losses)
            if after_backward is not None:
                after_backward()
            memory, micro_batch = None, 0
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            micro_batch = len(losses)
            memory = _describe(error)  # not the error itself: its traceback references the step's tensors
        if memory is None and self._reduces_itself:
            memory, micro_batch = self._reduce_gradients(), _AFTER_ALL
        elif memory is not None and self._reduces_itself:
            self._agreement.all_reduce_max(_MISSING)
        if memory is not None:
            self.optimizer.zero_grad(set_to_none=True)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
            anomaly = Anomaly(AnomalyKind.OUT_OF_MEMORY, memory, micro_batch, self._agreement.global_rank)
            return StepRun(tuple(losses), anomaly, GradientStats())
        return self.check(losses)

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
        """Checks detached losses, and the gradients in one scan."""
        if self._scaler is not None:
            unscale_once(self._scaler, self.optimizer)
        stats = measure_gradients(self.parameters, self._agreement)
        if self._is_checked_before_reduction:
            gradient_anomaly = self._anomaly_before_reduction
            self._is_checked_before_reduction, self._anomaly_before_reduction = False, None
        else:
            gradient_anomaly = self._gradient_anomaly(stats.nonfinite) if stats.nonfinite else None
        values: tuple[float | complex, ...] | None = _C.loss_values(losses)
        if values is None:  # a loss may hold its value elsewhere, as DTensor does
            with detection_paused():
                values = tuple(shards.local(loss).item() for loss in losses)
        return StepRun(tuple(losses), self._check.loss_anomaly(values) or gradient_anomaly, stats, values)

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
                    self._run_piece(piece, share / len(batches), losses)
                else:
                    with self._without_reduction():
                        self._run_piece(piece, share / len(batches), losses)

    def _run_piece(self, piece: Any, share: float, losses: list[torch.Tensor]) -> None:
        if self.step_fn is None:
            raise TypeError(
                "step() needs the step function: StepGuard(model, optimizer, step_fn). Without one, use "
                "`with guard.watch(batch):` and guard.ok_to_step(loss) in your own loop."
            )
        loss = loss_of(self.step_fn(self.model, piece))
        if self._on_loss is not None:
            self._on_loss(loss)
        losses.append(loss.detach())
        if not loss.requires_grad:
            self._warn_if_backward_did_not_run()
            return
        scaled = loss if share == 1.0 else loss * share
        (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]

    def _warn_if_backward_did_not_run(self) -> None:
        """Warns once if a detached loss comes without gradients: the step function did not run backward itself."""
        if self._has_warned_of_backward or any(parameter.grad is not None for _, parameter in self.parameters):
            return
        self._has_warned_of_backward = True
        logger.warning(
            "torchnan: step_fn returned a detached loss, and no parameter has a gradient, so this step trains nothing. "
            "Return the loss with its graph, or call loss.backward() in step_fn."
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
        average(self.parameters, self._agreement)
        return None

    def _gradient_anomaly(self, nonfinite: tuple[str, ...]) -> Anomaly | None:
        if not nonfinite:
            return None
        gradients = gradients_of(self.parameters)
        kind = AnomalyKind.GRADIENT if self._scaler is None else AnomalyKind.SCALER
        prefix = f"{len(nonfinite)} of {len(gradients)} gradients are not finite: "
        return self._check.gradient_anomaly(gradients, nonfinite, prefix=prefix, kind=kind)


def named_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """Returns the optimizer's parameters, named as in the model where the model has them."""
    names = {id(parameter): clean(name) for name, parameter in unwrap(model).named_parameters()}
    return [
        (names.get(id(parameter), f"param_groups[{g}]['params'][{i}]"), parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]


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
