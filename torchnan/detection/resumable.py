"""The decorator on generators, coroutines and asynchronous generators: their bodies run in steps, between which the
program does other things, and each step may run on another thread."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Session(Protocol):
    """A session that is entered for each step and stays open between them."""

    def __enter__(self) -> object: ...
    def __exit__(self, *error: Any) -> None: ...
    def kept_open(self) -> AbstractContextManager[None]:
        """Keeps the session open until the body has ended, and then ends it."""


def checked(function: Callable[..., Any], new_session: Callable[[], Session]) -> Callable[..., Any] | None:
    """Returns the function with its body checked, of the same kind; ``None`` if it does not run in steps."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            session = new_session()
            with session.kept_open():
                return (yield from _steps(session, function(*args, **kwargs)))

        return generator
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            session = new_session()
            with session.kept_open():
                return await _steps(session, function(*args, **kwargs))

        return coroutine
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            session = new_session()
            with session.kept_open():
                body = function(*args, **kwargs)
                step = body.asend(None)
                while True:
                    try:
                        value = await _steps(session, step)
                    except StopAsyncIteration:
                        return
                    try:
                        step = body.asend((yield value))
                    except BaseException as error:  # noqa: BLE001 - the program throws it into the body
                        step = body.athrow(error)

        return asynchronous
    return None


@types.coroutine
def _steps(session: Session, body: Any) -> Generator[Any, Any, Any]:
    """Passes on what a body yields and what is sent to it or thrown into it; detection is on while the body runs."""
    call, argument = body.send, None
    while True:
        with session:
            try:
                value = call(argument)
            except StopIteration as end:
                return end.value
        try:
            call, argument = body.send, (yield value)
        except BaseException as error:  # noqa: BLE001 - the program throws it into the body
            call, argument = body.throw, error
