"""Remedies for softmaxes: their logarithm, their exponentials, their masks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from torchnan.training.guard.remedies.call import Call, Line
from torchnan.training.guard.remedies.change import UNCHANGED, Change, rerun
from torchnan.training.guard.remedies.origin import Origin, at
from torchnan.training.guard.remedies.remedy import CallRemedy, Remedy, clamp


class StableLogarithm(CallRemedy):
    """Computes the logarithm of a softmax or a sigmoid from its argument."""

    answers = "the logarithm of a softmax or sigmoid, or of 1 minus a sigmoid, that has rounded to zero"
    because = "it is the same function, which log_softmax and logsigmoid compute without rounding to zero on the way"
    operators = frozenset({"log"})

    def fits(self, origin: Origin, call: Call) -> bool:
        return super().fits(origin, call) and _stable(call) is not None

    def text(self, origin: Origin, call: Call) -> str:
        name, _ = _stable(call) or ("", call)
        return name

    def lines(self, call: Call) -> str:
        _, maker = _stable(call) or ("", call)
        if maker.line is None or call.line is None or maker.line == call.line:
            return ""
        is_above = maker.line[0] == call.line[0] and maker.line[1] < call.line[1]
        return f"{at(maker.line)}-{call.line[1]}" if is_above else f"{at(call.line)}, {at(maker.line)}"

    def replace(self, call: Call) -> Any:
        name, maker = _stable(call) or ("", call)
        if name == "log_softmax":
            dtype = maker.get("dtype")
            return torch.log_softmax(maker["self"], maker["dim"], dtype=dtype)
        if name == "logsigmoid":
            return torch.nn.functional.logsigmoid(maker["self"])
        if name == "logsigmoid of -x":
            return torch.nn.functional.logsigmoid(-maker["self"])
        return UNCHANGED


def _stable(call: Call) -> tuple[str, Call] | None:
    """Returns the function that a logarithm is to be, and the call whose argument that takes."""
    maker = call.maker(call["self"])
    if maker is None:
        return None
    if maker.operator in ("softmax", "_softmax"):
        return "log_softmax", maker
    if maker.operator == "sigmoid":
        return "logsigmoid", maker
    if maker.operator == "rsub" and maker["other"] == 1 and maker["alpha"] == 1:
        sigmoid = maker.maker(maker["self"])
        if sigmoid is not None and sigmoid.operator == "sigmoid":
            return "logsigmoid of -x", sigmoid
    return None


class SubtractMaximum(CallRemedy):
    """Subtracts the largest argument before an exponential."""

    answers = "a softmax by hand whose exponential overflows, or whose exponentials are all zero"
    because = "the exponentials are summed over the same dimensions, and their ratio to the sum stays what it is"
    operators = frozenset({"exp"})

    def fits(self, origin: Origin, call: Call) -> bool:
        return super().fits(origin, call) and origin.normalized_over is not None

    def text(self, origin: Origin, call: Call) -> str:
        return "subtract the maximum before exp"

    def replacement(self, origin: Origin) -> Any:
        dims = origin.normalized_over

        def replace(call: Call) -> Any:
            logits = call["self"]
            return rerun(call, self=lambda value: value - logits.detach().amax(dims, keepdim=True))

        return replace


class FiniteConstant(Remedy):
    """Puts finite numbers in place of the infinities of a mask, where they are written."""

    answers = "a row that is masked completely, and arithmetic with the infinities of a mask"
    because = (
        "exp of the number is 0 as well, so a row that sees something keeps its bits; a row that sees "
        "nothing becomes uniform"
    )

    def changes(self, origin: Origin) -> Iterator[Change]:
        finding = origin.finding
        for constant in sorted({i.constant for i in finding.inputs if i.constant} if finding is not None else ()):
            file, _, line = constant.rpartition(":")
            yield _FiniteAtLine((file, int(line)))


class _FiniteAtLine(Change):
    def __init__(self, line: Line) -> None:
        super().__init__(f"finite mask value (finfo.min / 2) at {at(line)}")
        self._line = line

    def call(self, call: Call) -> Any:
        if call.line != self._line:
            return call.run()
        if any(map(math.isinf, call.numbers())):
            self.is_effective = True
            dtype = _written_dtype(call)
            return call.replace_leaves(lambda value: _finite(value, dtype) if isinstance(value, float) else value)
        result = call.run()
        if call.operator != "lift_fresh" or not result.is_floating_point() or not result.isinf().any():
            return result
        self.is_effective = True
        return _finite(result, result.dtype)


def _written_dtype(call: Call) -> torch.dtype:
    given = call.get("dtype")
    return given if isinstance(given, torch.dtype) and given.is_floating_point else call.dtype


class FiniteArguments(CallRemedy):
    """Keeps the arguments of the operation inside the range of its dtype."""

    answers = (
        "arithmetic with infinities, or with a number that the dtype cannot hold: 0 * inf, inf - inf, a "
        "softmax of -inf alone"
    )
    because = "they become the largest number of the dtype, halved, which leaves room for what is added to it"
    operators = frozenset()

    def fits(self, origin: Origin, call: Call) -> bool:
        highest = _limit(call.dtype)
        return bool(call.kinds() & ~1) or any(abs(value) > highest for value in call.numbers())

    def text(self, origin: Origin, call: Call) -> str:
        return f"finite arguments (clamp(-{_limit(call.dtype):.3g}, {_limit(call.dtype):.3g})) of {call.operator}"

    def replace(self, call: Call) -> Any:
        return call.replace_leaves(lambda value: _finite(value, call.dtype))


def _limit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max / 2


def _finite(value: Any, dtype: torch.dtype) -> Any:
    return clamp(value, -_limit(dtype), _limit(dtype))


class AttendSomewhere(CallRemedy):
    """Has a row of attention that is masked completely see everything."""

    answers = "attention with a row whose mask leaves nothing"
    because = "rows that see something keep their bits"
    operators = frozenset({"scaled_dot_product_attention"})

    def text(self, origin: Origin, call: Call) -> str:
        return f"let rows that are masked completely see everything in {call.operator}"

    def replace(self, call: Call) -> Any:
        return rerun(call, attn_mask=_seeing)


def _seeing(mask: Any) -> Any:
    if not isinstance(mask, torch.Tensor):
        return mask
    if mask.dtype is torch.bool:
        return mask | ~mask.any(-1, keepdim=True)
    sees_nothing = mask.isneginf().all(-1, keepdim=True)
    return torch.where(sees_nothing, torch.zeros_like(mask), mask)
