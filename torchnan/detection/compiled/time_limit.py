"""The time that torchnan may take to find the origin of a value in a compiled region."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_of_thread = threading.local()


class OutOfTimeError(BaseException):  # a replay contains each ``Exception``, and tries something else
    """The time is over. The message is the obstacle that a finding names."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Makes :func:`check` on this thread raise an error when the block has taken so long."""
    before = getattr(_of_thread, "limit", None)
    _of_thread.limit = (time.monotonic() + seconds, seconds)
    try:
        yield
    finally:
        _of_thread.limit = before


def check() -> None:
    """Raises :class:`OutOfTimeError` if the time of this thread is over."""
    limit = getattr(_of_thread, "limit", None)
    if limit is None:
        return
    end, seconds = limit
    if time.monotonic() >= end:
        raise OutOfTimeError(f"its origin was not found within max_explanation_seconds={seconds}")
