"""Keeps the provenances that replays of a region have found, for later calls with the same causes."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from torchnan.detection.compiled import replay

REPLAYS_OF_ONE_CAUSE = 3  # of calls whose values begin at the same nodes; later ones have what was found first
REPLAYS_OF_MODULES = 32  # of calls with the same modules or weights, in a session
REPLAYS_IN_ALL = 512  # of a region in a session
CHECKED_FIRST = 32  # calls in a row with one cause, each of them checked; from then on one is checked ...
CHECK_EVERY = 16  # ... in so many


@dataclasses.dataclass
class Explanation:
    """The provenances that replays have found for calls whose non-finite values begin at the same nodes.

    Attributes:
        provenances: of the results, by index.
        given: of the arguments and gradients that were non-finite in that call, in their order.
        replays: how many calls were replayed.
        latest: the provenances of the results in the last call.
    """

    provenances: dict[int, Any]
    given: list[Any]
    replays: int = 0
    latest: dict[int, Any] = dataclasses.field(default_factory=dict)

    def is_reported(self) -> bool:
        """Whether the cause of every result was reported in the last call."""
        return bool(self.latest) and all(provenance.is_reported for provenance in self.latest.values())

    def is_mask(self) -> bool:
        """Whether every result was a mask in the last call, or was reported."""
        return bool(self.latest) and all(made.is_reported or made.is_intentional for made in self.latest.values())


class Border(NamedTuple):
    """The facts about a call, or its backward pass, that are known without running anything.

    Attributes:
        key: equal for calls that look alike.
        modules: equal for calls with the same modules or weights; ``None`` if they are not known.
        finite: how many calls, or passes, of the region were finite until then.
        step: of the training.
    """

    key: Hashable
    modules: Hashable
    finite: int
    step: int

    def follows(self, earlier: Border) -> bool:
        """Whether no call was finite since an earlier one that looked alike; those of other modules may be."""
        return self.finite == earlier.finite or self.step == earlier.step + 1


@dataclasses.dataclass
class _Streak:
    """Calls in a row that look alike, and had one explanation where they were checked.

    Attributes:
        explanation: the explanation.
        last: the border of the last call.
        checked: how many were checked.
        unchecked: how many were not since then.
        pattern: where the results were non-finite in the last one that was checked, see :func:`pattern_of`.
    """

    explanation: Explanation
    last: Border
    checked: int = 1
    unchecked: int = 0
    pattern: Hashable = None


class Explanations:
    """The explanations of one region in one session.

    What is seen at the border does not tell causes apart: two operations can make the same value of finite inputs. So a
    call is checked by running its graph. The exceptions are in a row of calls that are alike: the cause was reported in
    the call before, or the results are masks that hide the same elements as then.
    """

    def __init__(self) -> None:
        self._replays: collections.Counter[Hashable] = collections.Counter()  # by the modules
        self._found: dict[Hashable, Explanation] = {}
        self._streaks: dict[Hashable, _Streak] = {}

    @property
    def replays(self) -> int:
        """How many calls of the region were replayed."""
        return self._replays.total()

    def is_exhausted(self, modules: Hashable) -> bool:
        """Whether calls with these modules were replayed as often as may be."""
        return self._replays[modules] >= REPLAYS_OF_MODULES or self.replays >= REPLAYS_IN_ALL

    def count_replay(self, modules: Hashable) -> None:
        """Counts a replay of a call with these modules."""
        self._replays[modules] += 1

    def assumed(self, border: Border, bad: Sequence[torch.Tensor]) -> Explanation | None:
        """Returns the explanation that a call may take over unchecked; ``None`` if it has to be checked.

        Args:
            border: of the call.
            bad: its non-finite results.
        """
        streak = self._streaks.get(border.key)
        if streak is None or not border.follows(streak.last):
            self._streaks.pop(border.key, None)
            return None
        streak.last = border
        if streak.checked < CHECKED_FIRST or streak.unchecked == CHECK_EVERY - 1:
            return None
        explanation = streak.explanation
        if not explanation.is_reported() and not (explanation.is_mask() and _is_alike(bad, streak.pattern)):
            return None
        streak.unchecked += 1
        return explanation

    def known(self, cause: Hashable) -> Explanation | None:
        """Returns the explanation of calls with this cause; ``None`` if it has to be looked for, by one more replay."""
        found = self._found.get(cause)
        return found if found is not None and found.replays >= REPLAYS_OF_ONE_CAUSE else None

    def add(self, cause: Hashable, found: dict[int, Any], given: list[Any]) -> Explanation:
        """Keeps what a replay has found. No other call takes it over if the cause is ``None``."""
        before = self._found.get(cause)
        explanation = Explanation(found, given, 1 if before is None else before.replays + 1)
        if cause is not None:
            self._found[cause] = explanation
        return explanation

    def confirm(self, border: Border, explanation: Explanation, bad: Sequence[torch.Tensor]) -> None:
        """Records that a call was checked, and has this explanation."""
        streak = self._streaks.get(border.key)
        if streak is None or streak.explanation is not explanation:
            self._streaks[border.key] = _Streak(explanation, border)
            return
        streak.checked += 1
        streak.unchecked = 0
        if streak.checked >= CHECKED_FIRST and not explanation.is_reported():
            streak.pattern = pattern_of(bad)


def _is_alike(bad: Sequence[torch.Tensor], pattern: Hashable) -> bool:
    return pattern is not None and pattern_of(bad) == pattern


def pattern_of(values: Sequence[torch.Tensor]) -> Hashable:
    """Returns what tells where values are non-finite; ``None`` if one is so everywhere."""
    masks = replay.unseen(lambda: [torch.isfinite(value.detach()) for value in values])
    if not all(mask.any() for mask in masks):
        return None
    return tuple((mask.shape, hash(mask.cpu().numpy().tobytes())) for mask in masks)
