"""Contains failures inside torchnan's Python code, so that user code continues. C++ has error_containment.h."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from types import TracebackType

from torchnan._load import _C
from torchnan.config.text import printable
from torchnan.detection import signal_handlers
from torchnan.detection.errors import NonFiniteError

logger = logging.getLogger("torchnan")

ExceptionTypes = type[Exception] | tuple[type[Exception], ...]


def _count_in_stats(part: str, error: Exception) -> None:
    _C.record_failure(part, describe(error))


class contained:  # a class: every step enters several, and a generator takes twice as long
    """Contains failures inside the block, except Ctrl-C, ``SystemExit`` and what a signal handler raises.

    Args:
        part: the part of the work that runs inside.
        record: called with the part and the error. Default: counts it in the ``stats()`` of detection sessions, which
            warn once for each part.
        let_through: errors for user code.

    Attributes:
        failure: the error in words, after the block; empty if there was none.
    """

    __slots__ = ("_let_through", "_part", "_record", "failure")

    def __init__(
        self,
        part: str,
        record: Callable[[str, Exception], None] = _count_in_stats,
        let_through: ExceptionTypes = NonFiniteError,
    ) -> None:
        self._part = part
        self._record = record
        self._let_through = let_through
        self.failure = ""

    def __enter__(self) -> contained:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._let_through):
            return False
        signal_handlers.let_through(error)
        self._record(self._part, error)
        self.failure = describe(error)
        return True


class Failures:
    """Counts the failures of a step guard or a monitor, and logs each part once.

    Args:
        let_through: errors for user code.
    """

    def __init__(self, let_through: ExceptionTypes = ()) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._let_through = let_through

    def record(self, part: str, error: BaseException) -> None:
        """Counts a failure."""
        self.counts[part] += 1
        if self.counts[part] == 1:
            with signal_handlers.suppressed():  # a logging handler of the user may fail, too
                why = printable(describe(error))
                text = "torchnan: %s failed: %s. Training continues; later failures are only counted."
                logger.warning(text, part, why)

    def contained(self, part: str) -> contained:
        """Contains and counts failures inside the block."""
        return contained(part, self.record, self._let_through)


def describe(error: BaseException) -> str:
    """Returns type and message of an error in one line, or only the type if there is no message."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failed:  # noqa: BLE001
        signal_handlers.let_through(failed)
        return type(error).__name__
