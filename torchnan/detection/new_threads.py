"""Attaches new Python threads to an open session: the dispatch key belongs to one thread, and is passed on to them."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torchnan._load import _C
from torchnan.detection.containment import contained
from torchnan.detection.hooks import lock
from torchnan.detection.replacement import replace

_undo: Callable[[], None] | None = None


@contextlib.contextmanager
def watching_new_threads(session: _C.DetectionSession) -> Iterator[None]:
    """Attaches every thread that Python starts inside the block to a session."""
    undo = replace(threading.Thread, "_bootstrap_inner", _watched_by(session))
    try:
        yield
    finally:
        undo()


def watch_new_threads(session: _C.DetectionSession | None) -> None:
    """Attaches every thread that Python starts from now on to a session; ``None`` ends that."""
    global _undo
    with lock:
        if _undo is not None:
            _undo()
        _undo = None if session is None else replace(threading.Thread, "_bootstrap_inner", _watched_by(session))


def _watched_by(session: _C.DetectionSession) -> Callable[[Any], Any]:
    def watched(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        @functools.wraps(run)
        def wrapper(self: threading.Thread) -> None:
            with contained("adding a thread"):
                _C.enter_session(session)
            try:
                run(self)
            finally:
                _C.leave_session(session)

        return wrapper

    return watched
