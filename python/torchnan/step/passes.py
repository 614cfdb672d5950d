"""Forward and backward of one step, over all its micro-batches, and one look at what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from torchnan._errors import NonFiniteError
from torchnan.step import shards
from torchnan.step.agreement import Agreement, Sight, What
from torchnan.step.gradients import Measured, describe_bad, gradients_of, measure, unwatched
from torchnan.step.micro_batches import split
from torchnan.step.tripwire import NormTripwire

StepFunction = Callable[[torch.nn.Module, Any], Any]

_NO_MEMORY = ("can't allocate memory", "not enough memory")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One run of a step.

    Attributes:
        losses: one for each micro-batch.
        sight: what was wrong with it, ``None`` if nothing was.
        norm: of its gradients.
    """

    losses: tuple[torch.Tensor, ...]
    sight: Sight | None
    norm: float


class Passes:
    """Runs a step up to the point where the optimizer would step.

    Args:
        model, optimizer: what is trained.
        step_fn: ``step_fn(model, batch)`` returns the loss; see :class:`torchnan.StepGuard`.
        scaler: a ``torch.amp.GradScaler``, or ``None``.
        tripwire: for norms.
        agreement: with the other ranks.
        survives_memory: a rank that runs out of memory must not leave the others waiting, so gradients are reduced
            only after all ranks have said that they have them.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        step_fn: StepFunction | None,
        scaler: torch.amp.GradScaler | None,
        tripwire: NormTripwire,
        agreement: Agreement,
        survives_memory: bool,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._step_fn = step_fn
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._tripwire = tripwire
        self._agreement = agreement
        self._reduces_itself = survives_memory and agreement.ranks > 1 and hasattr(model, "no_sync")
        self._parameters: list[tuple[str, torch.Tensor]] = []
        self.measured = Measured(0.0, 0.0, (), 0.0)

    @property
    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """What the optimizer changes, by name; groups may be added to it at any time."""
        if len(self._parameters) != sum(len(group["params"]) for group in self.optimizer.param_groups):
            self._parameters = named_parameters(self.model, self.optimizer)
        return self._parameters

    def run(self, batches: list[Any], parts: int = 1) -> Attempt:
        """Forward, backward, and what is to be said of it. The sight in it is this rank's; the norm is global."""
        losses: list[torch.Tensor] = []
        try:
            self._forward_backward(batches, parts, losses)
            memory = None
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            memory = str(error).splitlines()[0]  # and not the error: its traceback holds the step's tensors
        if memory is None and self._reduces_itself:
            memory = self._reduce_gradients()
        elif memory is not None and self._reduces_itself:
            self._agreement.largest(1)
        if memory is not None:
            self.optimizer.zero_grad(set_to_none=True)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
            return Attempt(tuple(losses), Sight(What.OUT_OF_MEMORY, memory, len(losses)), 0.0)
        return self.look(losses)

    def look(self, losses: list[torch.Tensor]) -> Attempt:
        """One scan over the gradients; the norm is this rank's, until the ranks have agreed."""
        if self._scaler is not None:
            unscale_once(self._scaler, self.optimizer)
        gradients = gradients_of(self.parameters)
        self.measured = measure(gradients, ranks=self._agreement.ranks)
        sight = self._bad_loss(losses) or self._bad_gradient(gradients)
        return Attempt(tuple(losses), sight, self.measured.norm)

    def agree(self, attempt: Attempt) -> tuple[Sight | None, float]:
        """What all ranks know of it, and the global norm."""
        gradients = gradients_of(self.parameters)
        if any(shards.is_sharded(gradient) for _, gradient in gradients) and self._agreement.ranks > 1:
            norm, worst = self._agreement.agree_with_norm(self.measured.squares, attempt.sight)
            return worst or self._bad_norm(norm), norm if worst is None else math.nan
        sight = attempt.sight or self._bad_norm(attempt.norm)
        return self._agreement.agree(sight), attempt.norm

    def _forward_backward(self, batches: list[Any], parts: int, losses: list[torch.Tensor]) -> None:
        assert self._step_fn is not None
        pieces = [(piece, share / len(batches)) for batch in batches for piece, share in _in_parts(batch, parts)]
        for i, (piece, share) in enumerate(pieces):
            waits = self._reduces_itself or i + 1 < len(pieces)
            with self._without_reduction() if waits else contextlib.nullcontext():
                loss = loss_of(self._step_fn(self.model, piece))
                losses.append(loss.detach())
                if not loss.requires_grad:  # the step function has run backward itself
                    continue
                scaled = loss if share == 1.0 else loss * share
                (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]

    def _without_reduction(self) -> contextlib.AbstractContextManager[Any]:
        no_sync = getattr(self.model, "no_sync", None)
        return no_sync() if callable(no_sync) else contextlib.nullcontext()

    def _reduce_gradients(self) -> str | None:
        """The mean over the ranks; says so if another rank has none to give."""
        if self._agreement.largest(0) > 0:
            return "another rank has run out of memory"
        with unwatched(), torch.no_grad():
            trained = [p for _, p in self.parameters if p.requires_grad]
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

    def _bad_loss(self, losses: list[torch.Tensor]) -> Sight | None:
        with unwatched():
            for i, loss in enumerate(losses):
                value = shards.local(loss).item()
                if not math.isfinite(abs(value)):
                    return Sight(What.LOSS, f"loss is {value}", i, self._agreement.global_rank)
        return None

    def _bad_gradient(self, gradients: list[tuple[str, torch.Tensor]]) -> Sight | None:
        bad = self.measured.bad
        if not bad:
            return None
        text = f"{len(bad)} of {len(gradients)} gradients are not finite: {describe_bad(gradients, bad)}"
        what = What.GRADIENT if self._scaler is None else What.SCALER
        return Sight(what, text, 0, self._agreement.global_rank)

    def _bad_norm(self, norm: float) -> Sight | None:
        text = self._tripwire.trip(norm)
        return None if text is None else Sight(What.NORM, text, 0, self._agreement.global_rank)


def named_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """What the optimizer changes, under the names of the model where it has one for it."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
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
            f"step_fn(model, batch) returned a {type(loss).__name__}{shape}: it must return the loss, a tensor of one "
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
