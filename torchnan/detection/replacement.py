"""Replaces functions of PyTorch and Python by wrappers, side by side with wrappers of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replace(holder: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Replaces ``holder.name`` by a wrapper; the returned function removes it.

    Other libraries may do the same, and remove theirs in any order. If theirs is on top, both stay until they have
    restored ours; the next wrapper then replaces it.
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
    """Returns the function inside a leftover wrapper of ours, and whether its holder had it as its own attribute."""
    mark = getattr(wrapper, "_torchnan_removed", None)
    return mark[1:] if mark is not None and mark[0] is wrapper else None  # functools.wraps() copies marks
