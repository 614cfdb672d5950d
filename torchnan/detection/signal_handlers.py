"""Signal handlers of the program: what they raise reaches the program, whatever torchnan is doing meanwhile."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from torchnan._load import _C


def raised_in(error: BaseException) -> BaseException | None:
    """Returns the error that a handler of the program raised, if it led to this one; ``None`` if there is none.

    Python calls handlers between any two instructions, so also between those of torchnan.
    """
    handlers = {code for handler in _handlers().values() if (code := _code_of(handler)) is not None}
    one: BaseException | None = error
    while handlers and one is not None:
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(one.__traceback__)):
            return one
        one = one.__cause__
    return None


def let_through(error: BaseException) -> None:
    """Raises what a handler of the program raised, if that led to this error. Call it where others are contained."""
    of_program = raised_in(error)
    if of_program is not None:
        try:
            raise of_program
        finally:
            del error, of_program  # the traceback has this frame, which would keep it and all frames below alive


@contextlib.contextmanager
def suppressed() -> Iterator[None]:
    """Drops each ``Exception`` of the block, except what a handler of the program raises."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as asked
        let_through(error)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Lets the handlers of the program run after the block, as after a call into C; each once, as there.

    Python runs handlers on the main thread alone; the block defers nothing elsewhere.
    """
    if threading.current_thread() is not threading.main_thread() or not (handlers := _handlers()):
        yield
        return
    arrived = dict[int, None]()

    def note(number: int, frame: FrameType | None) -> None:
        arrived[number] = None

    with _C.KeptSignalActions():  # flags, and handlers in C
        for number in handlers:
            signal.signal(number, note)
    try:
        yield
    finally:
        with _C.KeptSignalActions():
            for number, handler in handlers.items():
                if signal.getsignal(number) is note:
                    signal.signal(number, handler)
        for number in arrived:
            _C.repeat_signal(number)


def _handlers() -> dict[int, Callable[..., Any]]:
    """Returns the handlers in Python that the program has set, and that of Ctrl-C."""
    handlers = ((int(number), signal.getsignal(number)) for number in signal.valid_signals())
    return {number: handler for number, handler in handlers if callable(handler)}


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):  # a bound method has one, too
        handler = vars(type(handler)).get("__call__")
    return getattr(handler, "__code__", None)
