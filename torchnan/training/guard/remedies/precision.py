"""Remedies for overflow and underflow: the operation, its module or the step in a wider dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchnan.training.guard.remedies.arithmetic import ClampDenominator, ClampLogarithm, ClampToDomain, EpsilonInRoot
from torchnan.training.guard.remedies.call import Call
from torchnan.training.guard.remedies.change import Change
from torchnan.training.guard.remedies.origin import Origin
from torchnan.training.guard.remedies.remedy import Remedy, plain

_NARROW = (torch.float16, torch.bfloat16)
_WITH_POLES = ClampDenominator.operators | ClampLogarithm.operators | EpsilonInRoot.operators | ClampToDomain.operators
_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


class WiderDtype(Remedy):
    """Runs the operation, its module or the whole step in another dtype."""

    answers = "a value that leaves the range of its dtype, or that rounds to zero or to one in it"
    because = "float32 and bfloat16 reach to 3e38, float64 to 1e308 with 16 digits; what is computed stays the same"

    def changes(self, origin: Origin) -> Iterator[Change]:
        finding = origin.finding
        if finding is None or not origin.calls or finding.origin != "op" or finding.phase == "optimizer":
            return
        narrow = getattr(torch, finding.dtype)  # of the result: autocast may have chosen it
        for dtype in (torch.float32, torch.bfloat16) if narrow is torch.float16 else (_wider(narrow),):
            if narrow in _NARROW or (finding.kind == "inf" and not _has_pole(origin)):
                yield _InDtype(f"{_names(origin)} in {_NAMES[dtype]}{origin.where}", dtype, origin)
            module = _module_of(origin)
            if module is not None:
                yield _ModuleInDtype(f"{finding.module} in {_NAMES[dtype]}", dtype, module)
        yield _ModuleInDtype(f"the whole step in {_NAMES[_wider(narrow)]}", _wider(narrow), None)


def _has_pole(origin: Origin) -> bool:
    """Returns whether an infinity is the operation's exact result, in every dtype."""
    return any(plain(operator) in _WITH_POLES for operator in origin.operators)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _NARROW else torch.float64


def _names(origin: Origin) -> str:
    return ", ".join(sorted(origin.operators))


def _module_of(origin: Origin) -> torch.nn.Module | None:
    """Returns the module of the origin, ``None`` if it is the whole model or not known."""
    if origin.model is None or origin.finding is None or not origin.finding.module:
        return None
    with contextlib.suppress(AttributeError):
        return origin.model.get_submodule(origin.finding.module)
    return None


class _InDtype(Change):
    """Runs some calls in another dtype, and what computes with their results too."""

    def __init__(self, text: str, dtype: torch.dtype, origin: Origin) -> None:
        super().__init__(text)
        self._dtype = dtype
        self._line = origin.line
        self._operators = origin.operators

    def call(self, call: Call) -> Any:
        is_origin = call.operator in self._operators and call.line == self._line
        if not is_origin and not self._is_mixed(call):
            return call.run()
        self.is_effective = True
        return run_in(call, self._dtype)

    def _is_mixed(self, call: Call) -> bool:
        dtypes = {tensor.dtype for tensor in call.tensors if tensor.is_floating_point()}
        return len(dtypes) > 1 and self._dtype in dtypes and call.line is not None and not call.is_mutable


class _ModuleInDtype(Change):
    """Runs a module in another dtype, and returns its results in theirs; without a module, the whole step."""

    def __init__(self, text: str, dtype: torch.dtype, module: torch.nn.Module | None) -> None:
        super().__init__(text)
        self._dtype = dtype
        self._module = module
        self._depth = int(module is None)
        self._narrow: torch.dtype | None = None

    def call(self, call: Call) -> Any:
        if self._depth == 0 or call.line is None or call.is_mutable:
            return call.run()
        if self._narrow is None:
            self._narrow = call.dtype
        self.is_effective = True
        return run_in(call, self._dtype)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        if self._module is None:
            yield
            return
        handles = [
            self._module.register_forward_pre_hook(self._enter),
            self._module.register_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> Any:
        self._depth -= 1
        narrow = self._narrow
        if self._depth > 0 or narrow is None:
            return None
        return tree_map_only(torch.Tensor, lambda t: t.to(narrow) if t.dtype is self._dtype else t, result)


def run_in(call: Call, dtype: torch.dtype) -> Any:
    """Runs a call with its floating-point arguments in a dtype, whatever autocast would have it in."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return dtype if value.is_floating_point else value
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    device = next((tensor.device.type for tensor in call.tensors), "cpu")
    with torch.autocast(device, enabled=False):
        return call.replace_leaves(cast)
