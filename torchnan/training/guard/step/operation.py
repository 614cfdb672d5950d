"""The single operation at the origin with its arguments, taken from another run of the step.

A capture holds only operators of PyTorch that compute on tensors, because `extract` writes a program that calls what a
capture names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from torchnan.config.text import brief
from torchnan.detection.apart import step_apart
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

    def schema(self) -> torch.FunctionSchema | None:
        """Returns the operator's schema; ``None`` if a capture does not hold it, or if it takes other arguments."""
        schema = schema_of(self.op, self.overload)
        if schema is None:
            return None
        positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
        rest = {argument.name for argument in schema.arguments} - set(positional[: len(self.args)])
        return schema if len(self.args) <= len(positional) and self.kwargs.keys() <= rest else None

    def __str__(self) -> str:
        name, given = f"{brief(self.op)} with overload {brief(self.overload)}", brief(list(self.kwargs))
        return f"{name}, {len(self.args)} arguments and {given}"


# Arguments whose text chooses between ways to compute. Any other text may be the name of a file or of a process group.
_CHOICES = frozenset(
    (
        *("activation", "algorithm", "approximate", "driver", "equation", "indexing", "interpolation", "mode", "norm"),
        *("ord", "p", "pad_mode", "padding", "padding_side", "reduce", "rounding_mode", "side", "UPLO"),
    )
)
_TYPES = frozenset(("Tensor", "int", "float", "complex", "bool", "number", "Device", "Generator"))


def schema_of(op: str, overload: str) -> torch.FunctionSchema | None:
    """Returns the schema of an operator that touches nothing but tensors; ``None`` for any other, such as
    ``aten::from_file``, and for operators of other libraries."""
    if not re.fullmatch(r"aten::(?!__)\w+ \w*", f"{op} {overload}", re.ASCII):
        return None
    try:
        schema = torch._C._get_schema(op, overload)
    except RuntimeError:  # there is none of this name
        return None
    made = [result.type for result in schema.returns]
    made += [argument.type for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    is_computed = bool(made) and all(_kind(one) == "Tensor" for one in made)
    return schema if is_computed and all(map(_is_harmless, schema.arguments)) else None


def _is_harmless(argument: Any) -> bool:
    kind = _kind(argument.type)
    return kind in _TYPES or (kind == "str" and argument.name in _CHOICES)


def _kind(of: Any) -> str:
    """Returns a type of a schema without "Optional" and "List"."""
    kind = str(of)
    while (inner := re.fullmatch(r"(?:Optional|List)\[(.*)\]", kind)) is not None:
        kind = inner[1]
    return kind


def record(run: Callable[[], Any], finding: Finding) -> Operation | None:
    """Runs a step and returns the first call of the finding's operator that involves its bad tensor; ``None`` if there
    was none, or if a capture does not hold this operator.

    Compiled functions run uncompiled here: a compiled region does not show its operations, and Dynamo would never again
    compile a function that it has seen under a mode."""
    recorder = _Recorder(finding)

    def recorded() -> None:
        with torch.compiler.set_stance("force_eager"), recorder:
            run()

    step_apart(recorded)
    return recorder.found


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, finding: Finding) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Operation | None = None
        self._finding = finding
        self._is_kept = schema_of(finding.op, finding.overload) is not None

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
        return bool(
            self._is_kept and schema.name == self._finding.op and schema.overload_name == self._finding.overload
        )

    def _is_it(self, tensor: torch.Tensor) -> bool:
        """Whether two tensors have the same shape, and the same number of elements of each kind."""
        finding = self._finding
        if tuple(tensor.shape) != finding.shape or not (tensor.is_floating_point() or tensor.is_complex()):
            return False
        counts = torch.ops.torchnan.count_nonfinite(tensor.detach())
        return [int(n) for n in counts] == [finding.nan, finding.posinf, finding.neginf]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]
