"""One operation above autograd, before it runs: what a remedy looks at and changes."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from torchnan._load import _C
from torchnan.detection import introspection

Line = tuple[str, int]  # file, line

_FOLLOWED = {"softmax", "_softmax", "sigmoid", "rsub", "exp", "exp_"}  # a later operation may ask for their arguments
_MAX_NODES = 100  # of one operation
_POSINF, _NEGINF = 2, 4  # as in kinds_of()


class Call:
    """A call of an operator with its arguments.

    Attributes:
        operator: its name without the namespace: ``"div"``, in place ``"div_"``.
        line: of the user's that calls it; ``None`` inside a node of the backward pass.
    """

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], makers: Makers) -> None:
        self._func = func
        self._args = args
        self._kwargs = kwargs
        self._makers = weakref.ref(makers)  # it refers to calls
        self.operator: str = func._schema.name.rpartition("::")[2]
        self.line: Line | None = introspection.calling_line()

    def __contains__(self, name: str) -> bool:
        return any(argument.name == name for argument in self._func._schema.arguments)

    def __getitem__(self, name: str) -> Any:
        """Returns an argument by its name in the schema; its default if it was not given."""
        for i, argument in enumerate(self._func._schema.arguments):
            if argument.name == name:
                return self._args[i] if i < len(self._args) else self._kwargs.get(name, argument.default_value)
        raise KeyError(name)

    def get(self, name: str) -> Any:
        """Returns an argument, ``None`` if the operator has none of that name."""
        if name not in self:
            return None
        return self[name]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensor arguments, those in lists too."""
        return [leaf for leaf in tree_leaves((self._args, self._kwargs)) if isinstance(leaf, torch.Tensor)]

    @property
    def is_mutable(self) -> bool:
        """Whether it writes to an argument."""
        return bool(self._func._schema.is_mutable)

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point dtype of its first tensor that has one."""
        return next((t.dtype for t in self.tensors if t.is_floating_point()), torch.get_default_dtype())

    def maker(self, tensor: Any) -> Call | None:
        """Returns the call that made a tensor, of the operators that are followed."""
        makers = self._makers()
        if makers is None or not isinstance(tensor, torch.Tensor):
            return None
        made: Call | None = makers.get(tensor)  # type: ignore[no-untyped-call]
        return made

    def run(self, /, **changed: Any) -> Any:
        """Runs it, with other values for some arguments. An argument that it writes to is overwritten with its value,
        so that the caller's tensor has the result."""
        args, kwargs = list(self._args), dict(self._kwargs)
        for i, argument in enumerate(self._func._schema.arguments):
            if argument.name not in changed:
                continue
            value = changed[argument.name]
            if argument.alias_info is not None and argument.alias_info.is_write:
                _overwrite(self[argument.name], value)
            elif i < len(args):
                args[i] = value
            else:
                kwargs[argument.name] = value
        return self._run(args, kwargs)

    def numbers(self) -> list[float]:
        """Returns the floating-point numbers among its arguments."""
        return [value for value in tree_leaves((self._args, self._kwargs)) if isinstance(value, float)]

    def kinds(self) -> int:
        """Returns the non-finite kinds in its arguments, as bits."""
        return _union(map(_kinds_of, tree_leaves((self._args, self._kwargs))))

    def replace_leaves(self, change: Callable[[Any], Any]) -> Any:
        """Runs it with every argument changed that it does not write to, those in lists too."""

        def changed(value: Any, name: str) -> Any:
            if name in written:
                return value
            return type(value)(map(change, value)) if isinstance(value, list | tuple) else change(value)

        arguments = self._func._schema.arguments
        written = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
        args = [changed(value, argument.name) for value, argument in zip(self._args, arguments, strict=False)]
        return self._run(args, {name: changed(value, name) for name, value in self._kwargs.items()})

    def _run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = self._func(*args, **kwargs)
        if self.operator in _FOLLOWED and isinstance(result, torch.Tensor):
            makers = self._makers()
            if makers is not None:
                makers[result] = self
        return result


Makers = WeakTensorKeyDictionary  # from a tensor to the Call that made it


class CallMode(SchemaCheckMode):
    """Gives every operation of this thread to a function, above autograd, which runs it or another one instead.

    What runs inside the function is not given to it again. Of the modes above autograd PyTorch takes three classes
    only, and looks for nothing else in them: this one stands for a ``SchemaCheckMode``.

    Args:
        intercept: is given each call, and returns its result.
        makers: remembers the calls that made tensors. Calls know each other as long as it exists.
    """

    def __init__(self, intercept: Callable[[Call], Any], makers: Makers) -> None:
        TorchDispatchMode.__init__(self, DispatchKey.PreDispatch)  # type: ignore[no-untyped-call]
        self._intercept = intercept
        self._makers = makers
        self._dispatcher: Any = None

    def __enter__(self) -> CallMode:
        self._dispatcher = torch._C._EnablePythonDispatcher()
        TorchDispatchMode.__enter__(self)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)  # type: ignore[no-untyped-call]
        self._dispatcher = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C._DisablePythonDispatcher():  # its kernels are other ones, with other bits
            return self._intercept(Call(func, args, kwargs or {}, self._makers))


def kinds_in(result: Any) -> int:
    """Returns the non-finite kinds in a result, as bits."""
    return _union(map(_kinds_of, tree_leaves(result)))


def has_node(result: Any, node: str, call: Call) -> bool:
    """Returns whether a call has made a node of the graph, named as autograd names it."""
    before = {tensor.grad_fn for tensor in call.tensors}
    pending = [leaf.grad_fn for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    for _ in range(_MAX_NODES):
        if not pending:
            return False
        found: Any = pending.pop()
        if found is None or (found in before and not call.is_mutable):
            continue
        if found.name() == node:
            return True
        pending.extend(following for following, _ in found.next_functions)
    return False


def _kinds_of(value: Any) -> int:
    if isinstance(value, float):
        return 1 if value != value else _POSINF if value == torch.inf else _NEGINF if value == -torch.inf else 0
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return 0
    return _C.kinds_of(value.detach())


def _union(kinds: Iterator[int]) -> int:
    return max(itertools.accumulate(kinds, int.__or__), default=0)


def _overwrite(target: Any, value: Any) -> None:
    for into, source in zip(tree_leaves(target), tree_leaves(value), strict=True):
        if into is not source:
            into.copy_(source)
