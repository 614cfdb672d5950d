"""Failures of torchnan's own code in Python: they end here, and the program goes on. C++ has its like in contain.h."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torchnan._load import _C
from torchnan.detection.errors import NonFiniteError


@contextlib.contextmanager
def contained(part: str) -> Iterator[None]:
    """What fails inside is counted in ``stats()``, and warned about once for each part. Lets through what is meant for
    the program: :class:`NonFiniteError`, Ctrl-C, ``SystemExit``."""
    try:
        yield
    except NonFiniteError:
        raise
    except Exception as error:  # noqa: BLE001 - it may come from any object of the program's
        _C.record_failure(part, text_of(error))


def text_of(error: BaseException) -> str:
    """Its type and what it says, in one line, if it can say anything."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        return type(error).__name__
