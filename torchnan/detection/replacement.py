"""Wrappers in the place of functions of PyTorch and Python, beside those that others put there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replace(holder: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Puts a wrapper in the place of ``holder.name``; the function that is returned takes it away.

    Others may do the same, and take theirs away in any order. Where theirs is on top it stays there, and ours below,
    until they have put ours back: then the next wrapper replaces it.
    """
    own = name in vars(holder)
    original = vars(holder)[name] if own else getattr(holder, name)
    while (below := _wrapped_original(original)) is not None:
        original, own = below
    wrapper = wrap(original)
    setattr(holder, name, wrapper)

    def undo() -> None:
        if vars(holder).get(name) is not wrapper:
            wrapper._torchnan_removed = (wrapper, original, own)
        elif own:
            setattr(holder, name, original)
        else:
            delattr(holder, name)

    return undo


def _wrapped_original(wrapper: Any) -> tuple[Any, bool] | None:
    """Returns what a wrapper of ours that should have been removed wraps, and whether its holder had that itself."""
    mark = getattr(wrapper, "_torchnan_removed", None)
    return mark[1:] if mark is not None and mark[0] is wrapper else None  # functools.wraps() hands marks on
