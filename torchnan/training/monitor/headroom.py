"""Reads from a detection session how close the outputs of modules are to the limit of their dtype."""

from __future__ import annotations

from typing import Any

from torchnan.config.options import OptionError
from torchnan.config.text import type_name
from torchnan.detection import session
from torchnan.training.storage.jsonl import sanitize_text

MAX_MODULES = 32  # per row: those nearest to the limit of their dtype


class ModuleHeadroom:
    """Queries a detection session every few steps.

    Args:
        every: steps between two queries. 0: never.
        watch: the :class:`torchnan.detect` to query, made with ``headroom=True``. ``None``: the one in force at the
            time, if it was made so.

    Raises:
        OptionError: ``watch`` is not a :class:`torchnan.detect`, or was made without ``headroom=True``.
    """

    def __init__(self, every: int, watch: Any) -> None:
        if watch is not None and not isinstance(watch, session.detect):
            raise OptionError(f"watch is a {type_name(watch)}: it takes a torchnan.detect, or None.")
        if watch is not None and not watch.keeps_headroom:
            raise OptionError("watch keeps no headroom: make it with torchnan.detect(headroom=True).")
        self._every = every
        self._watch = watch
        self._steps = 0

    def measure(self) -> dict[str, tuple[str, float]] | None:
        """Returns dtype and largest value since the last query, by module, or by operator outside of modules.

        Returns ``None`` between two queries. Values with only a bound are left out, because they would look like growth
        or decay.
        """
        self._steps += 1
        if self._every == 0 or self._steps % self._every:
            return None
        watch = self._watch or session.innermost_with_headroom()
        if watch is None:
            return None
        largest: dict[str, tuple[str, float]] = {}
        for entry in watch.headroom():  # least room first
            if entry.exact and len(largest) < MAX_MODULES:
                largest.setdefault(entry.module or entry.op, (entry.dtype, entry.absmax))
        return sanitize_text(largest) or None
