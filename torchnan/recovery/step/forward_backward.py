"""Forward and backward of one step, over all its micro-batches, and one look at what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torchnan.config.text import printable, type_name
from torchnan.detection import shards
from torchnan.detection.errors import NonFiniteError
from torchnan.detection.introspection import clean, raised_at, unwrap
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement, Anomaly, AnomalyKind
from torchnan.recovery.step.gradients import (
    GradientStats,
    describe_nonfinite,
    gradients_of,
    measure,
    plain_norm,
)
from torchnan.recovery.step.micro_batches import split
from torchnan.recovery.step.norm_limit import NormLimit
from torchnan.recovery.step.random_state import RandomState

StepFunction = Callable[[torch.nn.Module, Any], Any]

_NO_MEMORY = ("can't allocate memory", "not enough memory")
_AFTER_ALL = 0xFFFF  # later than any micro-batch: the rank that ran out of memory itself is the one to be heard
_BAD, _NONE_TO_GIVE = 1, 2  # what a rank says of its gradients before they are averaged


@dataclasses.dataclass(frozen=True)
class StepRun:
    """One run of a step.

    Attributes:
        losses: one for each micro-batch.
        anomaly: what was wrong with it, ``None`` if nothing was.
        measured: its gradients, this rank's.
        values: of the losses, as they have been looked at.
    """

    losses: tuple[torch.Tensor, ...]
    anomaly: Anomaly | None
    measured: GradientStats
    values: tuple[float, ...] = ()

    @property
    def loss(self) -> torch.Tensor | None:
        """Their mean."""
        if len(self.losses) < 2:
            return self.losses[0] if self.losses else None
        return torch.stack([loss.reshape(()) for loss in self.losses]).mean()


class ForwardBackward:
    """Runs a step up to the point where the optimizer would step.

    Args:
        model, optimizer: what is trained.
        step_fn: ``step_fn(model, batch)`` returns the loss; see :class:`torchnan.StepGuard`.
        scaler: a ``torch.amp.GradScaler`` that is enabled, or ``None``.
        norm_limit: for norms.
        agreement: with the other ranks.
        is_oom_recoverable: a rank that runs out of memory must not leave the others waiting, so gradients are reduced
            only after all ranks have said that they have them.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        step_fn: StepFunction | None,
        scaler: torch.amp.GradScaler | None,
        norm_limit: NormLimit,
        agreement: Agreement,
        is_oom_recoverable: bool,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step_fn = step_fn
        self._scaler = scaler
        self._norm_limit = norm_limit
        self._agreement = agreement
        self._reduces_itself = is_oom_recoverable and agreement.ranks > 1 and hasattr(model, "no_sync")
        self.without_graph: Callable[[torch.Tensor], torch.Tensor] = (
            torch.Tensor.detach
        )  # of each loss, before backward
        self._parameters: list[tuple[str, torch.Tensor]] = []
        self._brought: tuple[Anomaly | None] | None = None  # who brought bad gradients, where the ranks have said so

    @property
    def gradients_arrive_reduced(self) -> bool:
        """Gradients are those of all ranks together when they are first looked at."""
        return self._agreement.ranks > 1 and not self._reduces_itself

    @property
    def waits_in_backward(self) -> bool:
        """Ranks wait for one another there: DDP and FSDP, which reduce gradients as they come."""
        reduces = hasattr(self.model, "no_sync") or hasattr(self.model, "set_requires_gradient_sync")
        return self.gradients_arrive_reduced and reduces

    @property
    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """What the optimizer changes, by name; groups may be added to it at any time."""
        if len(self._parameters) != sum(len(group["params"]) for group in self.optimizer.param_groups):
            self._parameters = named_parameters(self.model, self.optimizer)
        return self._parameters

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def run(
        self,
        batches: list[Any],
        parts: int = 1,
        randoms: Sequence[RandomState | None] = (),
        after_backward: Callable[[], None] = lambda: None,
    ) -> StepRun:
        """Forward, backward, and what is to be said of it, of this rank.

        Args:
            batches: the micro-batches.
            parts: into how many each is cut.
            randoms: for each micro-batch the random states to run it from; ``None``: those that there are.
            after_backward: called when all gradients are there, and a scaler has not touched them.
        """
        losses: list[torch.Tensor] = []
        if self._scaler is not None:
            self._scaler._per_optimizer_states.pop(id(self.optimizer), None)  # of a run that came to nothing
        try:
            self._run_micro_batches(batches, parts, randoms, losses)
            after_backward()
            memory, micro_batch = None, 0
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            micro_batch = len(losses)
            memory = _told(error)  # and not the error: its traceback holds the step's tensors
        if memory is None and self._reduces_itself:
            memory, micro_batch = self._reduce_gradients(), _AFTER_ALL
        elif memory is not None and self._reduces_itself:
            self._agreement.all_reduce_max(_NONE_TO_GIVE)
        if memory is not None:
            self.optimizer.zero_grad(set_to_none=True)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
            anomaly = Anomaly(AnomalyKind.OUT_OF_MEMORY, memory, micro_batch, self._agreement.global_rank)
            return StepRun(tuple(losses), anomaly, GradientStats())
        return self.look(losses)

    def run_unguarded(self, batches: list[Any]) -> StepRun:
        """Forward and backward, and whatever comes of it: with TORCHNAN=0."""
        losses: list[torch.Tensor] = []
        self._run_micro_batches(batches, 1, (), losses)
        return self.end_unguarded(losses)

    def end_unguarded(self, losses: list[torch.Tensor]) -> StepRun:
        """The norm, by PyTorch's own functions."""
        if self._scaler is not None:
            unscale_once(self._scaler, self.optimizer)
        return StepRun(tuple(losses), None, GradientStats(norm=plain_norm(gradients_of(self.parameters))))

    def look(self, losses: list[torch.Tensor]) -> StepRun:
        """One scan over the gradients."""
        if self._scaler is not None:
            unscale_once(self._scaler, self.optimizer)
        gradients = gradients_of(self.parameters)
        measured = measure(gradients, ranks=self._agreement.ranks)
        brought, self._brought = self._brought, None
        bad_gradient = brought[0] if brought else self._bad_gradient(gradients, measured.bad)
        with detection_paused():
            values = tuple(shards.local(loss).item() for loss in losses)
        return StepRun(tuple(losses), self._bad_loss(values) or bad_gradient, measured, values)

    def clip(self, norm: float, most: float | None) -> None:
        """Gradients whose norm is this one, as a whole."""
        if most is not None and norm > most:
            parameters = [parameter for _, parameter in self.parameters]
            torch.nn.utils.clip_grads_with_norm_(parameters, most, torch.tensor(norm))

    def agree(self, run: StepRun) -> tuple[Anomaly | None, float]:
        """What all ranks know of it, and the norm of its gradients."""
        return self._agreement.agree_with_norm(run.measured, run.anomaly, self._norm_limit.check)

    def _run_micro_batches(
        self, batches: list[Any], parts: int, randoms: Sequence[RandomState | None], losses: list[torch.Tensor]
    ) -> None:
        assert self.step_fn is not None
        cut = [_in_parts(batch, parts) for batch in batches]
        pieces = [(piece, share / len(batches)) for pieces in cut for piece, share in pieces]
        begins = {sum(map(len, cut[:i])): random for i, random in enumerate(randoms)}
        for i, (piece, share) in enumerate(pieces):
            random = begins.get(i)
            if random is not None:
                random.restore()
            waits = self._reduces_itself or i + 1 < len(pieces)
            with self._without_reduction() if waits else contextlib.nullcontext():
                loss = loss_of(self.step_fn(self.model, piece))
                losses.append(self.without_graph(loss))
                if not loss.requires_grad:  # the step function has run backward itself
                    continue
                scaled = loss if share == 1.0 else loss * share
                (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]

    def _without_reduction(self) -> contextlib.AbstractContextManager[Any]:
        no_sync = getattr(self.model, "no_sync", None)
        return no_sync() if callable(no_sync) else contextlib.nullcontext()

    def _reduce_gradients(self) -> str | None:
        """The mean over the ranks; says so if another rank has none to give. Whose are bad must be known before: the
        mean is bad everywhere."""
        mine = gradients_of(self.parameters)
        bad = measure(mine).bad
        worst = self._agreement.all_reduce_max(_BAD if bad else 0)
        if worst == _NONE_TO_GIVE:
            return "another rank has run out of memory"
        self._brought = (self._bad_gradient(mine, bad),) if worst == _BAD else None
        with detection_paused(), torch.no_grad():
            trained = [p for _, p in self.parameters if p.requires_grad]
            used = self._agreement.all_reduce_max_of([int(p.grad is not None) for p in trained])
            trained = [p for p, anywhere in zip(trained, used, strict=True) if anywhere]
            for parameter in trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [p.grad for p in trained if p.grad is not None]
            for kind in {(g.dtype, g.device) for g in gradients}:
                self._average([g for g in gradients if (g.dtype, g.device) == kind])
        return None

    def _average(self, gradients: list[torch.Tensor]) -> None:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=self._agreement.group)
        pieces = (flat / self._agreement.ranks).split(  # type: ignore[no-untyped-call]
            [gradient.numel() for gradient in gradients]
        )
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))

    def _bad_loss(self, values: tuple[float, ...]) -> Anomaly | None:
        for i, value in enumerate(values):
            if not math.isfinite(abs(value)):
                return Anomaly(AnomalyKind.LOSS, f"loss is {value}", i, self._agreement.global_rank)
        return None

    def _bad_gradient(self, gradients: list[tuple[str, torch.Tensor]], bad: tuple[str, ...]) -> Anomaly | None:
        if not bad:
            return None
        text = f"{len(bad)} of {len(gradients)} gradients are not finite: {describe_nonfinite(gradients, bad)}"
        what = AnomalyKind.GRADIENT if self._scaler is None else AnomalyKind.SCALER
        return Anomaly(what, text, 0, self._agreement.global_rank)


def named_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """What the optimizer changes, under the names of the model where it has one for it."""
    names = {id(parameter): clean(name) for name, parameter in unwrap(model).named_parameters()}
    return [
        (names.get(id(parameter), f"param_groups[{g}]['params'][{i}]"), parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]


def loss_of(returned: Any) -> torch.Tensor:
    """The loss in what a step function returns: a tensor, something with ``.loss`` or ``["loss"]``, or a pair that
    begins with it.

    Raises:
        TypeError: there is none.
    """
    loss = returned
    if isinstance(returned, Mapping) and "loss" in returned:
        loss = returned["loss"]
    elif hasattr(returned, "loss"):
        loss = returned.loss
    elif isinstance(returned, list | tuple) and returned:
        loss = returned[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
        raise TypeError(
            f"step_fn(model, batch) returned a {type_name(loss)}{shape}: it must return the loss, a tensor of one "
            "element, or something with .loss or ['loss']."
        )
    return loss


def unscale_once(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """As clipping would; not again if the program has done so."""
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise


def _in_parts(batch: Any, parts: int) -> list[tuple[Any, float]]:
    return [(batch, 1.0)] if parts == 1 else split(batch, parts)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, NonFiniteError):
        return False
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in _NO_MEMORY)


def _told(error: BaseException) -> str:
    """What it says, and where in the program it was raised."""
    line = raised_at(error)
    place = f" (at {line[0]}:{line[1]})" if line else ""
    return printable(f"{(str(error) or type(error).__name__).splitlines()[0]}{place}", 1000)
