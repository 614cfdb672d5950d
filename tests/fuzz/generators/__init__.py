"""Each module makes programs of one sort: ``generate(seed)`` returns source text, or None for a seed without one."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.comparison import Modes
from tests.fuzz.generators import (
    chain,
    compiled,
    extremes,
    graph,
    operators,
    optimizers,
    rules,
    sparse,
    storage,
    subclasses,
    threads,
)

GENERATORS: dict[str, tuple[Callable[[int], str | None], Modes]] = {
    "graph": (graph.generate, Modes()),
    "operators": (operators.generate, Modes()),
    "storage": (storage.generate, Modes()),
    "chain": (chain.generate, Modes(truth=False)),
    "subclasses": (subclasses.generate, Modes(truth=False)),
    "sparse": (sparse.generate, Modes(truth=False)),
    "compiled": (compiled.generate, Modes(exact=False, truth=False, eager=True)),
    "threads": (threads.generate, Modes(truth=False)),
    "extremes": (extremes.generate, Modes(truth=False, when="origin")),
    "optimizers": (optimizers.generate, Modes(truth=False, silent=True)),
    "rules": (rules.generate, Modes(truth=False, claims=True, when="origin")),
}
