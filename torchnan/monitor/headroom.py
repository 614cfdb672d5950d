"""How far the outputs of modules are from the end of their dtype's range, as a detection knows it."""

from __future__ import annotations

from typing import Any

from torchnan.config.options import OptionError
from torchnan.config.text import type_name
from torchnan.detection import session
from torchnan.storage.jsonl import sanitize_text

MAX_MODULES = 32  # in one line: those nearest to the end of their range


class ModuleHeadroom:
    """Asks a detection, every few steps.

    Args:
        every: steps. 0: never.
        watch: the detection that is asked, made with ``headroom=True``. ``None``: the one that is in force then; if it
            keeps no headroom, nothing is known.

    Raises:
        OptionError: ``watch`` is no detection, or keeps no headroom.
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
        """At every ``every``-th step, what was largest since the last time: dtype and value by module, or by operator
        outside of modules. Not what only bounds are known of: they would look like a rise or a fall.
        """
        self._steps += 1
        if self._every == 0 or self._steps % self._every:
            return None
        watch = self._watch or session.innermost_with_headroom()
        if watch is None:
            return None
        largest: dict[str, tuple[str, float]] = {}
        for one in watch.headroom():  # the least room first
            if one.exact and len(largest) < MAX_MODULES:
                largest.setdefault(one.module or one.op, (one.dtype, one.absmax))
        return sanitize_text(largest) or None
