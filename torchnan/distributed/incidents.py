"""Several findings as one story: what has one cause is one incident, on whichever rank and in whichever log it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from torchnan.detection.finding import LEVELS, Finding


@dataclasses.dataclass(frozen=True)
class Sighting:
    """Where else an incident was seen: its rank, its step, and the collective that brought it there, ``""`` if it was
    made there."""

    rank: int | None
    step: int | None
    collective: str = ""


@dataclasses.dataclass
class Incident:
    """What one cause has brought about.

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
        """What other ranks saw of it, in a line; ``""`` if nothing."""
        made = {one.rank for one in self.again} - {self.first.rank}
        parts = [f"made by {name_ranks(made)}, too"] if made else []
        if self.received:
            ways = ", ".join(sorted({one.collective for one in self.received}))
            parts.append(f"received by {name_ranks({one.rank for one in self.received})} through {ways}")
        return "; ".join(parts)


def incidents(findings: Iterable[Finding]) -> list[Incident]:
    """Returns the incidents that findings, in any order, tell of: the most serious first, of these the earliest.

    A value that was received from another rank belongs to what was made at the same step, or last before it. Where no
    rank tells what made it, it is an incident of its own.
    """
    made: dict[object, Incident] = {}
    received: list[Finding] = []
    for finding in findings:
        if is_received(finding):
            received.append(finding)
        elif (same := made.get(key := identity(finding))) is None:
            made[key] = Incident(finding, 1 + finding.repeats)
        else:
            _add(same, finding)
    story = sorted(made.values(), key=lambda incident: _order(incident.first))
    for finding in sorted(received, key=_order):
        cause = _cause_of(finding, story)
        if cause is None:
            story.append(Incident(finding, 1 + finding.repeats))
        else:
            if LEVELS.index(finding.level) < LEVELS.index(cause.first.level):
                cause.first = dataclasses.replace(cause.first, level=finding.level)
            cause.received.append(Sighting(finding.rank, finding.step, _collective(finding)))
    return sorted(story, key=lambda incident: (LEVELS.index(incident.first.level), *_order(incident.first)))


def is_received(finding: Finding) -> bool:
    """Returns whether a collective has brought the value from another rank."""
    return finding.collective is not None


def identity(f: Finding) -> object:
    """Returns what two findings that count as the same have in common, as in a running session."""
    own = next(((frame.file, frame.line) for frame in f.stack if not _is_installed(frame.file)), None)
    return (f.level, f.kind, f.origin, f.op, f.node, f.module, f.name, f.file, f.line, own, f.harm.name)


def name_ranks(ranks: Iterable[int | None]) -> str:
    """Returns ranks in words: ``ranks 0, 2 to 5``."""
    numbers = sorted(rank for rank in ranks if rank is not None)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(words)}" if words else "another process"


def _add(incident: Incident, finding: Finding) -> None:
    incident.count += 1 + finding.repeats
    if _order(finding) < _order(incident.first):
        incident.first, finding = finding, incident.first
    incident.again.append(Sighting(finding.rank, finding.step))


def _cause_of(received: Finding, story: Sequence[Incident]) -> Incident | None:
    # What did no harm was passed on to nobody, but for what a rank only notes that it has sent.
    alike = [one for one in story if one.first.level in (received.level, "note")]
    earlier = [one for one in alike if (one.first.step or 0) <= (received.step or 0)]
    at_step = [one for one in earlier if one.first.step == received.step and one.first.rank != received.rank]
    return next(iter(at_step or earlier[::-1]), None)


def _collective(finding: Finding) -> str:
    return (finding.collective or "").rpartition("::")[2]


def _order(finding: Finding) -> tuple[int, int]:
    return (finding.step or 0, -1 if finding.rank is None else finding.rank)


def _is_installed(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file
