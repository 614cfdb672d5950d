"""Operators that behave differently under observation, to test that a comparison notices it, by facet."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torchnan._load import _C

Spy = Callable[[torch.Tensor], Any]


def watched() -> bool:
    return _C.open_scopes() > 0


def _result(quiet: Spy, spying: Spy) -> Spy:
    return lambda x: spying(x) if watched() else quiet(x)


def _beside(act: Spy) -> Spy:
    """The result is the same."""

    def spy(x: torch.Tensor) -> torch.Tensor:
        if watched():
            act(x)
        return x * 2

    return spy


def _bits(word: int) -> Spy:
    return lambda x: torch.full(x.shape, word, dtype=torch.int32).view(torch.float32)


def _fail(text: str, error: type[Exception] = ValueError) -> Spy:
    def act(x: torch.Tensor) -> Any:
        raise error(text)

    return act


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, in_first: bool) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.in_first = in_first
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        slope = x.cos()
        if watched():
            slope = slope * 2 if ctx.in_first else slope.detach() * 2 - slope
        return gradient * slope, None


def _tell_the_gradient(act: Spy) -> Spy:
    def spy(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if watched():
            y.register_hook(act)
        return y

    return spy


def _out_of_sight(x: torch.Tensor) -> None:
    with torch._C._DisableTorchDispatch():
        torch.empty(1)


# Given 2 x 3 elements with gaps that require a gradient.
SPIES: dict[str, Spy] = {
    "outputs[0].bits": _result(lambda x: x * 2, lambda x: x * 3),
    "outputs[0].bits: sign of zero": _result(_bits(0), _bits(-(2**31))),
    "outputs[0].bits: payload of NaN": _result(_bits(0x7FC00000), _bits(0x7FC00001)),
    "outputs[0].shape": _result(lambda x: x.sum(0), lambda x: x.sum(0, keepdim=True)),
    "outputs[0].dtype": _result(lambda x: x * 2, lambda x: x.double() * 2),
    "outputs[0].layout": _result(lambda x: x.detach() * 2, lambda x: (x.detach() * 2).to_sparse()),
    "outputs[0].strides": _result(lambda x: x * 2, lambda x: (x * 2).mT.contiguous().mT),
    "outputs[0].offset": _result(lambda x: torch.ones(4)[:3], lambda x: torch.ones(4)[1:]),
    "outputs[0].flags": _result(lambda x: torch.complex(x, x).conj_physical(), lambda x: torch.complex(x, x).conj()),
    "outputs[0].version": _result(lambda x: x * 2, lambda x: (x * 2).add_(0)),
    "outputs[0].requires_grad": _result(lambda x: x.detach() * 2, lambda x: x * 2),
    "outputs[0].graph": _result(lambda x: x * 2, lambda x: x + x),
    "outputs[0].storage": _result(lambda x: x.detach(), lambda x: x.detach().clone()),
    "outputs[0].object": _result(lambda x: x, lambda x: x.view_as(x)),
    "outputs[1].bits": _result(lambda x: x * 2, lambda x: (x * 2, x)),
    "arguments[0].bits": _beside(lambda x: x.detach().add_(1)),
    "arguments[0].version": _beside(lambda x: x.detach().add_(0)),
    "memory[0]": _beside(lambda x: x.detach().as_strided((1,), (1,), 0).fill_(7)),
    "gradients[0].bits": lambda x: _Sine.apply(x, True),
    "second gradients[0].bits": lambda x: _Sine.apply(x, False),
    "error": _beside(_fail("spied")),
    "error: type": _result(_fail("same"), _fail("same", TypeError)),
    "error: text": _result(_fail("one"), _fail("other")),
    "error: in backward": _tell_the_gradient(_fail("spied")),
    "warnings[0]": _beside(lambda x: warnings.warn("spied", stacklevel=1)),
    "printed": _beside(lambda x: os.write(2, b"spied")),
    "random state": _beside(lambda x: torch.rand(1)),
    "Python's random state": _beside(lambda x: random.random()),
    "operations": _beside(lambda x: torch.empty(1)),
    "operations: below all modes": _beside(_out_of_sight),
    "operations: functions": _beside(lambda x: x.is_leaf),
}
