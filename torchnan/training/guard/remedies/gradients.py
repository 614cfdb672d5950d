"""Remedies that act on gradients and on the optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from torchnan.training.guard.remedies.call import Call
from torchnan.training.guard.remedies.change import Change
from torchnan.training.guard.remedies.origin import Origin
from torchnan.training.guard.remedies.remedy import CallRemedy, Remedy

_LIMIT = 1e3  # of an element
_TARGET_NORM = 1.0


class ClampGradient(CallRemedy):
    """Clamps the gradient that enters the operation's node in the backward pass."""

    answers = "a gradient that grows on its way back until it overflows"
    because = "its direction stays nearly what it is; the forward pass is not changed"
    operators = frozenset()

    def fits(self, origin: Origin, call: Call) -> bool:
        finding = origin.finding
        if finding is None or finding.phase != "backward":
            return False
        return any(given.absmax is not None and given.absmax > _LIMIT for given in finding.inputs)

    def text(self, origin: Origin, call: Call) -> str:
        return f"clamp(-{_LIMIT:g}, {_LIMIT:g}) of the gradient of {call.operator}"

    def replace(self, call: Call) -> Any:
        result = call.run()
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda gradient: gradient.clamp(-_LIMIT, _LIMIT))  # type: ignore[no-untyped-call]
        return result


class ClipNorm(Remedy):
    """Clips the gradients by their norm."""

    answers = "a step whose gradients are finite, but whose norm is too large"
    because = "all gradients shrink by the same factor; this does not mend gradients that are not finite"

    def changes(self, origin: Origin) -> Iterator[Change]:
        if origin.finding is None:
            yield _Clip(f"gradient clipping, max_norm={_TARGET_NORM:g}")


class _Clip(Change):
    def after_backward(self, parameters: list[torch.Tensor]) -> None:
        self.is_effective = True
        torch.nn.utils.clip_grad_norm_(parameters, _TARGET_NORM)


class LowerLearningRate(Remedy):
    """Divides the learning rate of every optimizer that steps in what is replayed."""

    answers = "weights that updates have made too large"
    because = "each update shrinks by the factor; it can be tried only where the updates are part of what is replayed"

    def changes(self, origin: Origin) -> Iterator[Change]:
        finding = origin.finding
        if finding is not None and finding.origin == "op" and origin.is_updated and (finding.step or 1) > 1:
            yield from (_Slower(f"learning rate / {factor}", factor) for factor in (10, 100, 1000))


class _Slower(Change):
    def __init__(self, text: str, factor: int) -> None:
        super().__init__(text)
        self._factor = factor
        self._rates: list[Any] = []

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        handles = [register_optimizer_step_pre_hook(self._cut), register_optimizer_step_post_hook(self._restore)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _cut(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.is_effective = True
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] / self._factor

    def _restore(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
