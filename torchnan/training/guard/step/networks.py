"""Finds the networks that a function refers to in its code, without running it."""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

_MAX_VISITED = 1000  # objects: a function may refer to a whole program
_MAX_DEPTH = 4


def networks_named_by(function: Any) -> list[tuple[str, nn.Module]]:
    """Returns the modules that a function, or a function that it names, refers to: as a global, in its closure, as a
    default, in the object that it is a method of, or in a list or dict of these. Each with its name there.

    What code finds in other ways, such as in a registry, is not found.
    """
    return [(name, value) for name, value in referred_by(function) if isinstance(value, nn.Module)]


def referred_by(function: Any, *, depth: int = _MAX_DEPTH) -> Iterator[tuple[str, Any]]:
    """Yields each object that a function refers to in its code, with its name.

    Args:
        function: the function, or an object that can be called.
        depth: how many references to follow.
    """
    visited: set[int] = set()
    waiting: collections.deque[tuple[str, Any, int]] = collections.deque([("", function, 0)])
    while waiting and len(visited) < _MAX_VISITED:
        name, value, at = waiting.popleft()
        if id(value) in visited or isinstance(value, str | bytes | int | float | type | types.ModuleType | None):
            continue
        visited.add(id(value))
        if at > 0:
            yield name, value
        if at < depth and not (isinstance(value, nn.Module) and at > 0):
            parts = itertools.islice(_parts_of(value, name), _MAX_VISITED)
            waiting.extend((of, part, at + 1) for of, part in parts)


def _parts_of(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from ((name, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield name, value.__func__
        yield "self", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _named_in(value)
    elif type(value) is dict:
        yield from ((f"{name}[{key!r}]", part) for key, part in list(value.items()))
    elif type(value) in (list, tuple):
        yield from ((f"{name}[{i}]", part) for i, part in enumerate(value))
    elif not _is_of_library(type(value)):
        call = getattr(type(value), "__call__", None)  # noqa: B004 - its code, not whether it has any
        if isinstance(call, types.FunctionType):
            yield name, call
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            yield from list(held.items())


def _named_in(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if _is_of_library(function):
        return
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from ((function.__name__, value) for value in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        yield function.__name__, wrapped


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def names_in(function: Any) -> set[str]:
    """Returns the names of globals and attributes in the code of a function; none of anything else."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return set(_names_in(code)) if isinstance(code, types.CodeType) else set()


def _is_of_library(value: Any) -> bool:
    package = str(getattr(value, "__module__", "")).partition(".")[0]
    return package in ("torch", "torchnan", "numpy", "builtins")
