"""The names of functions in reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def name_in_report(function: Callable[..., Any]) -> str:
    """The qualified name; on Python 3.10, whose code objects do not know it, the bare one."""
    code = function.__code__  # type: ignore[attr-defined]
    return getattr(code, "co_qualname", code.co_name)
