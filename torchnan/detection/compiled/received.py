"""Collectives in a replay: each brings what it brought in the region's own call, and no other rank takes part."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchnan.detection import introspection
from torchnan.detection.compiled import torch_internals
from torchnan.detection.compiled.compilation import unwatched
from torchnan.detection.compiled.graph import as_list

# Operator, process group and value, in the order of the calls.
Received = Sequence[tuple[str, str, torch.Tensor | None]]
_Key = tuple[str, str, torch.Size, torch.dtype]

_numbers = itertools.count()


class UnknownCollectiveError(RuntimeError):
    """A collective of the replay is not one of those that the region's own call has run."""


class AsReceived(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes functional collectives return the values that a call has received, and all others fail.

    The collective itself runs on a process group that moves no values, so that detection follows it as in an eager
    program. Generated code may run collectives in another order than the graph: only those of one operator, group,
    shape and dtype have to be in the same order.
    """

    def __init__(self, received: Received) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values: dict[_Key, collections.deque[torch.Tensor]] = collections.defaultdict(collections.deque)
        for op, group, value in received:
            if value is not None:
                self._values[_name(op), group, value.shape, value.dtype].append(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if any(one.__module__.startswith("torch.distributed.") for one in types):
            return NotImplemented  # a distributed tensor calls its collectives with plain ones, which come here
        if func.namespace == "c10d":
            raise UnknownCollectiveError(f"{func} waits for other ranks")
        if not is_functional_collective(func):
            return func(*args, **options)
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | options
        group = given["group_name"]
        with torch_internals.group_that_moves_nothing(group, f"torchnan {next(_numbers)}") as stand_in:
            made = func(**(given | {"group_name": stand_in}))
        with unwatched():  # a replay need not wait for everything, and PyTorch warns of results that nothing waits for
            for part in as_list(made):
                torch.ops._c10d_functional.wait_tensor.default(part)
                self._fill(part, func._schema.name, group)
        return made

    def remaining(self) -> Received:
        """Returns the values that no collective has returned yet."""
        return [(op, group, value) for (op, group, *_), values in self._values.items() for value in values]

    def _fill(self, result: torch.Tensor, op: str, group: str) -> None:
        """Writes a value without an operation, as a collective does."""
        values = self._values[_name(op), group, result.shape, result.dtype]
        if not values or not result.is_cpu or not result.is_contiguous():
            raise UnknownCollectiveError(f"the generated code has not run {op} as the graph does")
        ctypes.memmove(result.data_ptr(), values.popleft().data_ptr(), result.nbytes)


introspection.hide(AsReceived.__torch_dispatch__.__code__)


def _name(op: str) -> str:
    return op.rpartition("::")[2].removesuffix("_out").removesuffix("_")


def is_functional_collective(target: Any) -> bool:
    """Returns whether an operator is a functional collective, which runs on a process group given by its name."""
    is_named = getattr(target, "namespace", "") in ("_c10d_functional", "_dtensor")
    return is_named and any(argument.name == "group_name" for argument in target._schema.arguments)


def as_received(received: Received | None) -> contextlib.AbstractContextManager[Any]:
    """Returns a context with the values that a call has received; ``None`` if its region has no collectives."""
    return contextlib.nullcontext() if received is None else AsReceived(received)
