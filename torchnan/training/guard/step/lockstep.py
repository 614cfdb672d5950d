"""Keeps ranks that run a step again together: all of them enter its last backward pass, or none."""

from __future__ import annotations

from torchnan.distributed.agreement import Agreement

ANOTHER_RANK = "another rank cannot run it again"


class OtherRankFailed(RuntimeError):
    """Raised where another rank has failed in a part that all ranks run together."""


class Lockstep:
    """One vote of all ranks, before the last backward pass of a step, where DDP lets them wait for one another.

    Args:
        agreement: agreement with the other ranks.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._has_voted = False

    def arrive(self) -> None:
        """Says that this rank has come to the backward pass.

        Raises:
            OtherRankFailed: another rank has not.
        """
        self._has_voted = True
        if self._agreement.all_reduce_max(0) > 0:
            raise OtherRankFailed(ANOTHER_RANK)

    def leave(self) -> None:
        """Says that this rank has failed, unless it has come to the backward pass before that."""
        if not self._has_voted:
            self._has_voted = True
            self._agreement.all_reduce_max(1)
