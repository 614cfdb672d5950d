"""Hides detection from Dynamo's guards, which compare the dispatch keys of a thread with those at compilation.

All code is compiled without the key of detection, as in the plain program. As long as a session is open, each code has
a *twin* among the entries that PyTorch keeps for packages of compiled code: Dynamo looks there first, and counts them
nowhere. A twin has the same code, and checks the same guards without the key.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection.compiled import earlier_regions, torch_internals
from torchnan.detection.containment import contained
from torchnan.detection.pause import detection_paused
from torchnan.detection.reference_counts import references_elsewhere

_GUARDS = "_torchnan_guards"  # an attribute of the guards of a twin: a weak reference to those of its code


class Twins:
    """The twins of all code, until they are removed."""

    def __init__(self) -> None:
        self._codes: dict[int, weakref.ref[CodeType]] = {}
        self._guards: dict[int, _C.TwinGuards] = {}

    def add_known(self) -> None:
        """Adds twins for all code that was compiled before."""
        for code in torch_internals.compiled_functions():
            for entry in reversed(torch_internals.cache_entries(code)):  # oldest first
                if entry.guard_manager is None or entry.code is None:  # Dynamo has discarded it
                    continue
                with contained("using code that was compiled before"):
                    if earlier_regions.follow(code, entry.code, entry.guard_manager):
                        self._add(code, entry.guard_manager, entry.code, entry.backend, torch_internals.scope_of(entry))
        earlier_regions.remember_names()

    def compiling(self, compile_frame: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps what compiles a function: without the key of detection, and with a twin for the new code."""

        @functools.wraps(compile_frame)
        def compile_unwatched(callback: Any, frame: Any, *args: Any, **options: Any) -> Any:
            with detection_paused():
                result = compile_frame(callback, frame, *args, **options)
            guarded = result.guarded_code
            if guarded is not None:
                with contained("using compiled code"):
                    backend = torch_internals.backend_of(callback)
                    scope = torch_internals.current_scope()
                    self._add(frame.f_code, guarded.guard_manager, guarded.code, backend, scope)
            return result

        return compile_unwatched

    def _add(self, code: CodeType, guards: Any, compiled: CodeType, backend: Any, scope: int) -> None:
        self._codes[id(code)] = weakref.ref(code)
        present = [getattr(entry.guard_manager, _GUARDS, None) for entry in torch_internals.package_entries(code)]
        if any(known is not None and known() is guards for known in present):  # it could not be removed
            return
        if id(code) not in self._guards:
            self._guards[id(code)] = _C.TwinGuards(*torch_internals.callback_of_compiled())
        reference = weakref.ref(guards, functools.partial(_releasing(), weakref.ref(compiled)))
        check = self._guards[id(code)].add(reference, backend, scope)
        setattr(torch_internals.add_package_entry(code, check, compiled), _GUARDS, reference)

    def remove(self) -> None:
        """Removes all twins, unless another thread may be looking at them: then they stay, and fit no call."""
        earlier_regions.restore()
        for reference in self._codes.values():
            code = reference()
            if code is None:
                continue
            if all(hasattr(entry.guard_manager, _GUARDS) for entry in torch_internals.package_entries(code)):
                torch_internals.remove_package_entries(code)  # none is of the program
        self._codes.clear()
        self._guards.clear()


@functools.cache
def _releasing() -> Callable[..., None]:
    """Returns :func:`_release` for a place where Dynamo may watch the frames of the thread."""
    return torch.compiler.disable(_release)  # type: ignore[no-untyped-call,no-any-return]


def _release(compiled: weakref.ref[CodeType], _: Any) -> None:
    """Releases the graphs of code that Dynamo has discarded, with their tensors: a twin keeps the code itself."""
    code = compiled()
    if code is not None and references_elsewhere([code])[0] <= 2:  # the twin and the variable: no frame runs it
        earlier_regions.release(torch_internals.graph_functions(code))


def without_twins(list_entries: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that lists the entries of packages, for messages to the program."""

    @functools.wraps(list_entries)
    def list_others(code: CodeType) -> list[Any]:
        return [entry for entry in list_entries(code) if not hasattr(entry.guard_manager, _GUARDS)]

    return list_others
