"""Functions that ``aot_compile()`` compiled, and that a program may have loaded: they have no graph, and are checked at
their border. Detection is hidden from their guards, because a failing guard would end the program with an error."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from torchnan._load import _C
from torchnan.detection.compiled.stack import Line
from torchnan.detection.containment import contained
from torchnan.detection.pause import detection_paused

OBSTACLE = "a function that was compiled ahead of time has no graph"

_calls: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()  # by function


def unwatched(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the functions that make or check guards, so that the dispatch keys in them are those without detection."""

    @functools.wraps(run)
    def run_unwatched(*args: Any, **options: Any) -> Any:
        with detection_paused():
            return run(*args, **options)

    return run_unwatched


def checking(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the call of a function's generated code so that its results are checked."""

    @functools.wraps(run)
    def run_checked(function: Any, *args: Any, **options: Any) -> Any:
        call = None
        with contained("checking a function that was compiled ahead of time"):
            is_region = hasattr(function.compiled_fn, "__torchnan_region__")  # compiled while detection was on
            if _C.current_session() is not None and not is_region and not options:
                _C.mark_all_stale(args)  # it may write into them without reporting it
                call = _checked(function, run)
        return run(function, *args, **options) if call is None else call(*args)

    return run_checked


def _checked(function: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    from torchnan.detection.compiled.region import Region

    if function not in _calls:
        known = weakref.ref(function)

        def run_alive(*args: Any) -> Any:
            return run(known(), *args)

        code = sys._getframe(2).f_code  # the code of the program's function, as modified by Dynamo
        site = Line(code.co_filename, code.co_firstlineno, code.co_name)
        _calls[function] = Region(None, run_alive, site, OBSTACLE).checked()
    return _calls[function]
