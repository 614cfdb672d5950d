"""Keeps the provenances that replays of a region have found, for later calls with the same causes."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torchnan.detection.compiled import replay, time_limit

REPLAYS_OF_ONE_CAUSE = 3  # of calls whose values begin at the same nodes, if they were reported or are masks
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
        key: equal for calls that look alike: from the same place, with the same modules, the same kinds of non-finite
            arguments and the same kinds of non-finite results.
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
        pattern: of the last one that was checked, see :func:`pattern_of`.
    """

    explanation: Explanation
    last: Border
    checked: int = 1
    unchecked: int = 0
    pattern: Hashable = None


@dataclasses.dataclass
class _Masks:
    """The masks that one node has made.

    Attributes:
        provenances: of the results that they reached, by index.
        sources: what the signatures of these calls say of the node, such as the kinds that it has made.
        replays: how many calls were replayed in which they reached a result, and all results were masks.
    """

    provenances: dict[int, Any] = dataclasses.field(default_factory=dict)
    sources: set[Hashable] = dataclasses.field(default_factory=set)
    replays: int = 0


class Explanations:
    """The explanations of one region in one session.

    What is seen at the border does not tell causes apart: two operations can make the same value of finite inputs. So a
    call is checked by running its graph. The exceptions are in a row of calls that are alike: the cause was reported in
    the call before, or the results are masks that hide the same elements as then, and the boolean arguments are equal.

    A region may return several masks, in any combination, wherever it is called. A combination is not replayed if each
    of its nodes has made nothing but masks, and makes now what it made then: a NaN is not what made a mask.
    """

    def __init__(self) -> None:
        self._replays: collections.Counter[Hashable] = collections.Counter()  # by the modules
        self._found: dict[Hashable, Explanation] = {}
        self._keys: set[Hashable] = set()  # of all signatures that were replayed
        self._masks: collections.defaultdict[str, _Masks] = collections.defaultdict(_Masks)  # by the node's name
        self._streaks: dict[Hashable, _Streak] = {}
        self.obstacle = ""  # why no further call is explained

    @contextlib.contextmanager
    def limiting_time(self, seconds: int) -> Iterator[None]:
        """Ends the block when it has taken so long, and sets ``obstacle``."""
        try:
            with time_limit.limited(seconds):
                yield
        except time_limit.OutOfTimeError as over:
            self.obstacle = str(over)

    @property
    def replays(self) -> int:
        """How many calls of the region were replayed."""
        return self._replays.total()

    def is_exhausted(self, modules: Hashable, signature: replay.Signature | None = None) -> bool:
        """Whether calls with these modules were replayed as often as may be. A new signature is replayed nevertheless.

        Args:
            modules: of the call.
            signature: of the call, if it is known.
        """
        is_new = signature is not None and bool(signature.sources) and signature.key not in self._keys
        return self.replays >= REPLAYS_IN_ALL or (self._replays[modules] >= REPLAYS_OF_MODULES and not is_new)

    def count_replay(self, modules: Hashable) -> None:
        """Counts a replay of a call with these modules."""
        self._replays[modules] += 1

    def assumed(self, border: Border, pattern: Callable[[], Hashable]) -> Explanation | None:
        """Returns the explanation that a call may take over unchecked; ``None`` if it has to be checked.

        Args:
            border: of the call.
            pattern: returns that of the call.
        """
        streak = self._streaks.get(border.key)
        if streak is None or not border.follows(streak.last):
            self._streaks.pop(border.key, None)
            return None
        streak.last = border
        if streak.checked < CHECKED_FIRST or streak.unchecked == CHECK_EVERY - 1:
            return None
        explanation = streak.explanation
        is_same_mask = explanation.is_mask() and streak.pattern is not None
        if not explanation.is_reported() and not (is_same_mask and pattern() == streak.pattern):
            return None
        streak.unchecked += 1
        return explanation

    def known(self, border: Border, signature: replay.Signature, bad: Sequence[int]) -> Explanation | None:
        """Returns the explanation of a call; ``None`` if it has to be looked for, by one more replay.

        A cause that has not been reported is looked for as often as may be: its first report has to have the numbers
        of its own call.

        Args:
            border: of the call.
            signature: of the call.
            bad: indices of its non-finite results.
        """
        found = self._found.get((border.key, signature.key))
        if found is None:
            return self._combined(border, signature, bad)
        is_known = found.is_mask() and found.replays >= REPLAYS_OF_ONE_CAUSE
        return found if is_known or self.is_exhausted(border.modules, signature) else None

    def _combined(self, border: Border, signature: replay.Signature, bad: Sequence[int]) -> Explanation | None:
        """Returns the explanation of a call whose values are masks that other calls have made in other combinations."""
        reaching = signature.reaching(bad)
        if reaching is None or any(self._masks[name].replays < REPLAYS_OF_ONE_CAUSE for name in reaching):
            return None
        if any(not self._masks[name].sources >= signature.sources_at(name) for name in reaching):
            return None
        made = {i: provenance for name in reaching for i, provenance in self._masks[name].provenances.items()}
        if not made.keys() >= set(bad):
            return None
        explanation = Explanation({i: made[i] for i in bad}, [], REPLAYS_OF_ONE_CAUSE)
        self._found[border.key, signature.key] = explanation
        return explanation

    def add(self, border: Border, signature: replay.Signature, found: dict[int, Any], given: list[Any]) -> Explanation:
        """Keeps what a replay has found. No other call takes it over if it is not known where its values begin."""
        key = border.key, signature.key
        before = self._found.get(key)
        explanation = Explanation(found, given, 1 if before is None else before.replays + 1)
        if signature.sources:
            self._found[key] = explanation
            self._keys.add(signature.key)
        if not given and all(provenance.is_intentional for provenance in found.values()):
            for name in signature.reaching(found) or ():
                masks = self._masks[name]
                masks.provenances.update({i: one for i, one in found.items() if name in signature.reached[i]})
                masks.sources |= signature.sources_at(name)
                masks.replays += 1
        return explanation

    def confirm(self, border: Border, explanation: Explanation, pattern: Callable[[], Hashable]) -> None:
        """Records that a call was checked, and has this explanation and pattern."""
        streak = self._streaks.get(border.key)
        if streak is None or streak.explanation is not explanation:
            self._streaks[border.key] = _Streak(explanation, border)
            return
        streak.checked += 1
        streak.unchecked = 0
        if streak.checked >= CHECKED_FIRST and not explanation.is_reported():
            streak.pattern = pattern()


def pattern_of(results: Sequence[torch.Tensor], arguments: Sequence[Any]) -> Hashable:
    """Returns what tells where results are non-finite, and the boolean arguments; ``None`` if one is so everywhere."""

    def parts() -> list[torch.Tensor] | None:
        finite = [torch.isfinite(result.detach()) for result in results]
        if not all(part.any() for part in finite):
            return None
        return finite + [one for one in arguments if isinstance(one, torch.Tensor) and one.dtype == torch.bool]

    compared = replay.apart(parts)
    return None if compared is None else tuple((part.shape, hash(part.cpu().numpy().tobytes())) for part in compared)
