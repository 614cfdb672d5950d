"""Decides which ranks capture a bad step, which of them write shared weights, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

WRITERS_AT_ONCE = 16  # in the whole job: a file system stalls if thousands of ranks write at once


@dataclasses.dataclass(frozen=True)
class CapturePlan:
    """The same on every rank.

    Attributes:
        turns: groups of ranks that write at the same time, one group after another.
        holders: by rank, the rank that writes each part which the rank holds; possibly the rank itself.
    """

    turns: tuple[tuple[int, ...], ...]
    holders: dict[int, tuple[int, ...]]

    @property
    def writers(self) -> tuple[int, ...]:
        """All ranks that write, in their order."""
        return tuple(rank for turn in self.turns for rank in turn)


def plan_captures(parts: Sequence[Sequence[int]], cause: int, most: int) -> CapturePlan:
    """Returns the plan for a bad step.

    Args:
        parts: by rank, a fingerprint of each part (the weights, the buffers) that it holds; empty if a rank writes
            no captures.
        cause: the rank that made the bad value. It writes the parts that it shares with others.
        most: the maximum number of ranks that write. Ranks with a part that no other writer has are never left out.
    """
    order = sorted((rank for rank, held in enumerate(parts) if held), key=lambda rank: (rank != cause, rank))
    holder: dict[tuple[int, int], int] = {}
    holders: dict[int, tuple[int, ...]] = {}
    for rank in order:
        holders[rank] = tuple(holder.setdefault(part, rank) for part in enumerate(parts[rank]))
    needed = {rank for held in holders.values() for rank in held}
    others = [rank for rank in order if rank not in needed][: most - len(needed)] if len(needed) < most else []
    first = [rank for rank in order if rank in needed]  # the others need to know whether these have written
    turns = [
        tuple(group[i : i + WRITERS_AT_ONCE])
        for group in (first, others)
        for i in range(0, len(group), WRITERS_AT_ONCE)
    ]
    return CapturePlan(tuple(turns), {rank: holders[rank] for rank in (*first, *others)})
