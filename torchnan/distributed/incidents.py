"""Combines findings into incidents: findings with one cause are one incident, on whichever rank and in whichever
log."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

from torchnan.detection import report_rows
from torchnan.detection.finding import LEVELS, Finding, Harm, identity, operation_of, times_again, told

MAX_RUNS = 12  # of consecutive ranks that are named


@dataclasses.dataclass(frozen=True)
class Sighting:
    """Another place where an incident was seen: its rank, its step, and the collective that brought it there, ``""`` if
    it was made there."""

    rank: int | None
    step: int | None
    collective: str = ""


@dataclasses.dataclass
class Incident:
    """Everything that one cause led to.

    Attributes:
        first: the earliest finding of it.
        count: how many findings it has where the value was made, with those that were folded.
        again: sightings of the same at later steps or on other ranks.
        received: sightings on ranks that received the value from the one that made it.
    """

    first: Finding
    count: int
    again: list[Sighting] = dataclasses.field(default_factory=list)
    received: list[Sighting] = dataclasses.field(default_factory=list)

    @property
    def elsewhere(self) -> str:
        """The sightings of other ranks, in one line; ``""`` if nothing."""
        made = {one.rank for one in self.again} - {self.first.rank}
        parts = [f"made by {name_ranks(made)}, too"] if made else []
        if self.received:
            ways = ", ".join(sorted({one.collective for one in self.received}))
            parts.append(f"received by {name_ranks({one.rank for one in self.received})} through {ways}")
        return "; ".join(parts)


class Story:
    """Collects findings, in any order, into incidents. It holds one finding of each incident, and only the sightings of
    the others, so it can process more findings than fit into memory.

    A value received from another rank belongs to the incident made at the same step, or last before it. If no rank
    reports its origin, it is a separate incident. A rank that takes no optimizer steps, such as one that only
    evaluates, counts none.

    Attributes:
        count: number of findings so far.
        ranks: the ranks that they are from.
    """

    def __init__(self) -> None:
        self.count = 0
        self.ranks: set[int] = set()
        self._made: dict[object, Incident] = {}
        self._received: list[tuple[str, Sighting]] = []  # with the level
        self._earliest: dict[str, Finding] = {}  # received, by level: only these may become incidents
        self._sightings: dict[Sighting, Sighting] = {}  # each once
        self._harm: dict[
            tuple[int | None, str], Harm
        ] = {}  # that values did first which a collective brought in a step

    def add(self, finding: Finding) -> None:
        """Adds a finding."""
        self.count += 1
        if finding.rank is not None:
            self.ranks.add(finding.rank)
        if is_received(finding):
            sighting = self._sighting(finding, _collective(finding))
            self._received.append((finding.level, sighting))
            self._harm.setdefault((sighting.step, sighting.collective), finding.harm)
            earliest = self._earliest.setdefault(finding.level, finding)
            if _order(finding) < _order(earliest):
                self._earliest[finding.level] = finding
            return
        same = self._made.setdefault(identity(finding), Incident(finding, 0))
        if times_again(finding) and self._is_told_again(finding, same):
            self.count -= 1
            same.count += times_again(finding)
            return
        same.count += 1 + times_again(finding)
        if same.first is not finding:
            if _order(finding) < _order(same.first):
                same.first, finding = finding, same.first
            same.again.append(self._sighting(finding))

    def _is_told_again(self, finding: Finding, same: Incident) -> bool:
        """Whether a log has had this finding before, when it had been found at most half as often."""
        is_more = times_again(finding) + 1 >= 2 * (times_again(same.first) + 1)
        if same.count and is_more and told(same.first) == told(finding):
            same.count -= times_again(same.first)
            same.first = finding
            return True
        return self._sighting(finding) in same.again

    def _sighting(self, finding: Finding, collective: str = "") -> Sighting:
        sighting = Sighting(finding.rank, finding.step, collective)
        return self._sightings.setdefault(sighting, sighting)

    def incidents(self) -> list[Incident]:
        """Returns the incidents: the most serious first, of these the earliest."""
        made = _joined(sorted((dataclasses.replace(one, received=[]) for one in self._made.values()), key=_order_of))
        received = sorted(self._received, key=lambda one: _order(one[1]))
        for level in LEVELS:
            # Harmless values were not passed on, except those that a rank notes as sent.
            alike = [incident for incident in made if incident.first.level in (level, "note")]
            for sighting in (sighting for of_level, sighting in received if of_level == level):
                cause = _cause_of(sighting, alike)
                if cause is None:
                    first = self._earliest[level]  # all later ones of this level belong to it
                    alike.insert(0, Incident(first, 1 + first.repeats))
                    made.insert(0, alike[0])
                else:
                    cause.received.append(sighting)
                    harm = cause.first.harm
                    if harm.kind == "none":  # on the rank that made it
                        harm = self._harm[sighting.step, sighting.collective]
                    cause.first = dataclasses.replace(cause.first, level=level, harm=harm)
        return sorted(made, key=lambda incident: (LEVELS.index(incident.first.level), *_order_of(incident)))


def _joined(made: Sequence[Incident]) -> list[Incident]:
    """Joins values that did no harm on the ranks that made them with an incident in which the same operation made them
    on another rank and they did harm."""
    errors = {operation_of(one.first): one for one in reversed(made) if one.first.level == "error"}
    kept = []
    for one in made:
        sightings = [Sighting(one.first.rank, one.first.step), *one.again]
        same = errors.get(operation_of(one.first)) if one.first.level != "error" else None
        if same is None or same.first.rank in {sighting.rank for sighting in sightings}:
            kept.append(one)
        else:
            same.count += one.count
            same.again = [*same.again, *sightings]
    return kept


def _order_of(incident: Incident) -> tuple[int, int]:
    return _order(incident.first)


def incidents(findings: Iterable[Finding]) -> list[Incident]:
    """Returns the incidents of some findings, as :class:`Story` has them."""
    story = Story()
    for finding in findings:
        story.add(finding)
    return story.incidents()


def is_received(finding: Finding) -> bool:
    """Returns whether a collective has brought the value from another rank."""
    return finding.collective is not None


def name_ranks(ranks: Iterable[int | None]) -> str:
    """Returns ranks in words: ``ranks 0, 2 to 5``; for very many only the first."""
    numbers = sorted(rank for rank in ranks if rank is not None)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = runs[: report_rows.shown_of(len(runs), MAX_RUNS)]
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in shown]
    more = len(numbers) - sum(map(len, shown))
    named = f"rank{'s' if len(numbers) > 1 else ''} {', '.join(words)}" if words else "another process"
    return f"{named} and {more:,} more" if more else named


def _cause_of(received: Sighting, made: Sequence[Incident]) -> Incident | None:
    """Returns the incident from which a value was received, among those of its level, in their order: of those at its
    step, or else at the last step before it, the first of another rank. A rank without an optimizer stays at step 1:
    there it is the first of all that other ranks have made."""
    end = bisect.bisect_right(made, received.step or 0, key=_step_of)
    if not end:
        is_counted = (received.step or 0) > 1
        return None if is_counted else next((one for one in made if one.first.rank != received.rank), None)
    begin = bisect.bisect_left(made, _step_of(made[end - 1]), hi=end, key=_step_of)
    of_others = (one for one in made[begin:end] if one.first.rank != received.rank)
    return next(of_others, made[end - 1])


def _step_of(incident: Incident) -> int:
    return incident.first.step or 0


def _collective(finding: Finding) -> str:
    return (finding.collective or "").rpartition("::")[2]


def _order(finding: Finding | Sighting) -> tuple[int, int]:
    return (finding.step or 0, -1 if finding.rank is None else finding.rank)
