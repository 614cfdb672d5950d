"""The single operation at the origin with its arguments, taken from another run of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from torchnan.detection.finding import Finding


@dataclasses.dataclass(frozen=True)
class Operation:
    """One call of an operator.

    Attributes:
        op: ``"aten::div"``.
        overload: ``"Tensor"``, ``""`` for the default one.
        args, kwargs: its arguments; tensors as they were before the call.
    """

    op: str
    overload: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def record(run: Callable[[], Any], finding: Finding) -> Operation | None:
    """Runs a step and returns the first call of the finding's operator that involves its bad tensor; ``None`` if there
    was none.

    Compiled functions run uncompiled here: a compiled region does not show its operations, and Dynamo would never again
    compile a function that it has seen under a mode."""
    recorder = _Recorder(finding)
    with torch.compiler.set_stance("force_eager"), recorder:
        run()
    return recorder.found


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, finding: Finding) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Operation | None = None
        self._finding = finding

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.found is not None or not self._is_wanted(func):
            return func(*args, **kwargs)
        before = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))
        out = func(*args, **kwargs)
        if any(self._is_it(tensor) for tensor in _tensors((out, args, kwargs))):
            self.found = Operation(self._finding.op, self._finding.overload, *before)
        return out

    def _is_wanted(self, func: Any) -> bool:
        schema = func._schema
        return bool(schema.name == self._finding.op and schema.overload_name == self._finding.overload)

    def _is_it(self, tensor: torch.Tensor) -> bool:
        """Whether two tensors have the same shape, and the same number of elements of each kind."""
        finding = self._finding
        if tuple(tensor.shape) != finding.shape or not (tensor.is_floating_point() or tensor.is_complex()):
            return False
        counts = torch.ops.torchnan.count_nonfinite(tensor.detach())
        return [int(n) for n in counts] == [finding.nan, finding.posinf, finding.neginf]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]
