"""Keeps the provenances that replays of a region have found, for later calls with the same causes."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torchnan._load import _C
from torchnan.detection.compiled import kernels, time_limit
from torchnan.detection.compiled.probe import Reached

REPLAYS_OF_ONE_CAUSE = 3  # of calls whose values begin at the same nodes, if they were reported or are masks
REPLAYS_OF_MODULES = 32  # of calls with the same modules or weights, in a session
REPLAYS_IN_ALL = 512  # of a region in a session
CHECKED_FIRST = 32  # calls in a row with one cause, each of them checked; from then on one is checked ...
CHECK_EVERY = 16  # ... in so many


@dataclasses.dataclass(frozen=True)
class Signature:
    """What tells the causes in a call from those in another, found without detection.

    Attributes:
        sources: the nodes or kernels where non-finite values begin; empty if nothing was found. Calls that look alike
            at the border, and have the same sources, have the same causes.
        reached: by which of them each output of the graph is reached; empty if it is not known, as for gradients.
        kernels: that wrote non-finite values, if these were looked for.
    """

    sources: tuple[Hashable, ...]
    reached: Reached
    kernels: kernels.Kernels

    @property
    def key(self) -> Hashable:
        """Equal for calls with the same causes."""
        return self.sources, self.reached

    def sources_at(self, name: str) -> frozenset[Hashable]:
        """Returns what is known of a node where non-finite values begin: the kinds that it has made."""
        return frozenset(source for source in self.sources if isinstance(source, tuple) and source[0] == name)

    def is_finite(self, result: int) -> bool:
        """Whether a result is finite without generated code, which rounds and contracts differently."""
        return result < len(self.reached) and not self.reached[result]

    def reaching(self, results: Iterable[int]) -> frozenset[str] | None:
        """Returns the names of the sources and inputs that reach some results; ``None`` if they are not known."""
        indices = list(results)
        if any(i >= len(self.reached) or self.is_finite(i) for i in indices):
            return None
        return frozenset[str]().union(*(self.reached[i] for i in indices))


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

    def repeated(self, given: list[torch.Tensor], is_checked: bool) -> dict[int, Any]:
        """Returns the provenance of the results of a call that came about as in this one.

        Args:
            given: the non-finite values that the call was given.
            is_checked: whether the two calls were compared.
        """
        pairs = []
        for then, part in zip(self.given, given, strict=True):
            if then is None:
                continue
            now = _C.provenance_of(part)
            if now is None:
                (now,) = _C.repeated_in_this_call([then], [], is_checked)
                _C.set_provenance(part, now)
            pairs.append((then, now))
        repeated = _C.repeated_in_this_call(list(self.provenances.values()), pairs, is_checked)
        return dict(zip(self.provenances, repeated, strict=True))

    def is_reported(self) -> bool:
        """Whether the cause of every result was reported in the last call."""
        return bool(self.latest) and all(provenance.is_reported for provenance in self.latest.values())

    def is_mask(self) -> bool:
        """Whether every result was a mask in the last call, or was reported."""
        return bool(self.latest) and all(made.is_reported or made.is_intentional for made in self.latest.values())


class Appearance(NamedTuple):
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

    def is_in_row_with(self, earlier: Appearance) -> bool:
        """Whether no call was finite since an earlier one that looked alike; those of other modules may be."""
        return self.finite == earlier.finite or self.step == earlier.step + 1


@dataclasses.dataclass
class _Streak:
    """Calls in a row that look alike, and had one explanation where they were checked.

    Attributes:
        explanation: the explanation.
        last: the appearance of the last call.
        checked: how many were checked.
        unchecked: how many were not since then.
        pattern: of the last one that was checked, see :func:`replay.pattern_of`.
    """

    explanation: Explanation
    last: Appearance
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

    def obstacle_to_replay(self, modules: Hashable, signature: Signature | None = None) -> str:
        """Returns why no call with these modules is replayed; empty if one may be. A new signature is replayed even if
        calls with these modules were replayed as often as may be.

        Args:
            modules: of the call.
            signature: of the call, if it is known.
        """
        is_new = signature is not None and bool(signature.sources) and signature.key not in self._keys
        replays = self._replays.total()
        if replays < REPLAYS_IN_ALL and (is_new or self._replays[modules] < REPLAYS_OF_MODULES):
            return self.obstacle
        return f"{replays} of its calls were replayed in this detection, as many as may be"

    def count_replay(self, modules: Hashable) -> None:
        """Counts a replay of a call with these modules."""
        self._replays[modules] += 1

    def look_up(
        self, seen: Appearance, bad: Sequence[int], signature: Callable[[], Signature], pattern: Callable[[], Hashable]
    ) -> tuple[Explanation | None, Signature | None]:
        """Looks for the explanation of a call among those of earlier ones.

        Args:
            seen: how the call looks.
            bad: indices of its non-finite results.
            signature: finds its signature, for little more than an eager run.
            pattern: returns its pattern.

        Returns:
            The explanation, ``None`` if a replay has to find it, and the signature, ``None`` if the call takes over the
            explanation unchecked.
        """
        assumed = self._assumed(seen, pattern)
        if assumed is not None:
            return assumed, None
        found = signature()
        known = self._known(seen, found, bad)
        if known is not None:
            self._confirm(seen, known, pattern)
        return known, found

    def _assumed(self, seen: Appearance, pattern: Callable[[], Hashable]) -> Explanation | None:
        streak = self._streaks.get(seen.key)
        if streak is None or not seen.is_in_row_with(streak.last):
            self._streaks.pop(seen.key, None)
            return None
        streak.last = seen
        if streak.checked < CHECKED_FIRST or streak.unchecked == CHECK_EVERY - 1:
            return None
        explanation = streak.explanation
        is_same_mask = explanation.is_mask() and streak.pattern is not None
        if not explanation.is_reported() and not (is_same_mask and pattern() == streak.pattern):
            return None
        streak.unchecked += 1
        return explanation

    def _known(self, seen: Appearance, signature: Signature, bad: Sequence[int]) -> Explanation | None:
        """A cause that has not been reported is looked for as often as may be: its first report has to have the numbers
        of its own call."""
        found = self._found.get((seen.key, signature.key))
        if found is None:
            return self._combined(seen, signature, bad)
        is_known = found.is_mask() and found.replays >= REPLAYS_OF_ONE_CAUSE
        return found if is_known or self.obstacle_to_replay(seen.modules, signature) else None

    def _combined(self, seen: Appearance, signature: Signature, bad: Sequence[int]) -> Explanation | None:
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
        self._found[seen.key, signature.key] = explanation
        return explanation

    def add(self, seen: Appearance, signature: Signature, found: dict[int, Any], given: list[Any]) -> Explanation:
        """Keeps what a replay has found. No other call takes it over if it is not known where its values begin."""
        key = seen.key, signature.key
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

    def _confirm(self, seen: Appearance, explanation: Explanation, pattern: Callable[[], Hashable]) -> None:
        """Records that a call was checked, and has this explanation and pattern."""
        streak = self._streaks.get(seen.key)
        if streak is None or streak.explanation is not explanation:
            self._streaks[seen.key] = _Streak(explanation, seen)
            return
        streak.checked += 1
        streak.unchecked = 0
        if streak.checked >= CHECKED_FIRST and not explanation.is_reported():
            streak.pattern = pattern()
