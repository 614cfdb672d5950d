"""A change to a step: what one trial does differently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from torchnan.training.guard.remedies.call import Call, Line, Makers

UNCHANGED: Any = object()  # of a replacement: the call runs as it is


class Change:
    """A change to a step. A subclass overrides the part that it changes.

    Attributes:
        text: what is done differently, in a line.
        is_effective: whether it has changed anything in the run; a trial that has not says nothing.
        makers: the calls that made tensors in its run.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_effective = False
        self.makers = Makers()

    def call(self, call: Call) -> Any:
        """Runs an operation of the step, or another one in its place."""
        return call.run()

    def batch(self, batch: Any) -> Any:
        """Returns what the step is given in place of a micro-batch."""
        return batch

    def after_backward(self, parameters: list[torch.Tensor]) -> None:
        """Changes the gradients before they are checked."""

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns what is entered around the run."""
        return contextlib.nullcontext()


class CallChange(Change):
    """Replaces the calls of some operators at one line.

    Args:
        text: what is done differently.
        line: the user's line.
        operators: names of the operators.
        replace: runs another operation and returns its result, or ``UNCHANGED``.
    """

    def __init__(self, text: str, line: Line, operators: frozenset[str], replace: Callable[[Call], Any]) -> None:
        super().__init__(text)
        self._line = line
        self._operators = operators
        self._replace = replace

    def call(self, call: Call) -> Any:
        if call.operator not in self._operators or call.line != self._line:
            return call.run()
        result = self._replace(call)
        if result is UNCHANGED:
            return call.run()
        self.is_effective = True
        return result


def rerun(call: Call, /, **changes: Callable[[Any], Any]) -> Any:
    """Runs a call with arguments changed; returns ``UNCHANGED`` if that leaves all of them as they are.

    Args:
        call: the call.
        changes: by argument, a function from a tensor or a number to another one; of a list, of each item.
    """
    changed = {name: _each(change, call[name]) for name, change in changes.items()}
    if all(_is_same(value, call[name]) for name, value in changed.items()):
        return UNCHANGED
    return call.run(**changed)


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    return [change(item) for item in value] if isinstance(value, list | tuple) else change(value)


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return all(map(_is_same, a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b)
