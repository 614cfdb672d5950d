"""Warnings about deprecated names. They work until the release after the one that deprecates them."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn_deprecated(text: str) -> None:
    """Warns at the line of the program that uses a deprecated name, however deep in torchnan this is found."""
    level = 1
    frame: FrameType | None = sys._getframe(0)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torchnan":
        level, frame = level + 1, frame.f_back
    warnings.warn(f"torchnan: {text}", DeprecationWarning, stacklevel=level)
