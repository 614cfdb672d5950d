"""AOTInductor packages: compiled elsewhere, they bring no graph, and what they return is checked at the border."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torchnan._load import _C
from torchnan.detection.compiled.stack import Line
from torchnan.detection.containment import contained

OBSTACLE = "a package has no graph"

_paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # by loader
_calls: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def naming(load: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of a package's loader so that the package is reported under its path."""

    @functools.wraps(load)
    def load_named(loader: Any, path: Any, *rest: Any, **options: Any) -> None:
        load(loader, path, *rest, **options)
        with contained("naming an AOTInductor package"):
            _paths[loader] = str(path)

    return load_named


def checking(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the call of a package so that its results are checked."""

    @functools.wraps(run)
    def run_checked(loader: Any, inputs: list[Any], *rest: Any, **options: Any) -> Any:
        call = None
        with contained("checking an AOTInductor package"):
            # A stream is given for a device, where results are not checked at the border.
            if _C.current_session() is not None and type(inputs) is list and not rest and not options:
                _C.mark_all_stale(inputs)  # it may write into them, and tells nobody
                call = _checked(loader, run)
        return run(loader, inputs, *rest, **options) if call is None else call(inputs)

    return run_checked


def _checked(loader: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    from torchnan.detection.compiled.region import Region

    if loader not in _calls:
        known = weakref.ref(loader)

        def run_alive(inputs: list[Any]) -> Any:
            return run(known(), inputs)

        name = " ".join(["AOTInductor package", *_paths.get(loader, "").splitlines()])
        _calls[loader] = Region(None, {}, run_alive, Line("", 0, name), obstacle=OBSTACLE).checked()
    return _calls[loader]
