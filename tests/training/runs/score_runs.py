"""How often ``torchnan diagnose`` is right about small real trainings, and what it says where it is wrong.

python -m tests.training.runs.score_runs [--failing 100:110] [--healthy 100:105] [--folder FOLDER] [--jobs 1] [--log]

Trains what the folder does not have yet. The exit status is 0 if 95 % of the failing runs have the right verdict (kind,
cause, first step) and no healthy run has any.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.training.runs.generated_runs import Made, made_all, wanted
from torchnan.diagnosis import Verdict, diagnose, read

LEAST_RIGHT = 0.95
FAILING, HEALTHY = range(100, 110), range(100, 105)  # seeds; the rules were made with others


@dataclass(frozen=True)
class Scored:
    """The worst verdict on a run, beside the truth."""

    made: Made
    path: Path
    verdict: Verdict

    @property
    def wrong(self) -> str:
        """The errors of a verdict; nothing if it is right."""
        truth, verdict = self.made.truth, self.verdict
        if verdict.kind != truth.kind:
            return "kind"
        if truth.kind == "healthy":
            return ""
        if truth.causes and verdict.cause not in truth.causes:
            return "cause"
        return "" if truth.first <= verdict.first_step <= truth.last else "first step"

    def __str__(self) -> str:
        truth, verdict = self.made.truth, self.verdict
        return (
            f"{self.made.name}-{self.made.seed}: {self.wrong}. Right: {truth.kind} {'/'.join(truth.causes)} "
            f"{truth.first}..{truth.last} ({truth.why}). Said: {verdict.kind} {verdict.cause} {verdict.first_step} "
            f"by {verdict.branch}.\n    torchnan diagnose {self.path}"
        )


def score(made: Made, as_log: bool) -> Scored:
    path = made.json_lines if as_log else made.csv
    return Scored(made, path, diagnose(read(path)).verdicts[0])


def confusion(scored: Iterable[Scored]) -> str:
    """A Markdown table: the planted failures, and the diagnoses."""
    said: dict[tuple[str, str, str], Counter[str]] = {}
    for one in scored:
        truth = one.made.truth
        row = said.setdefault((truth.kind, "/".join(truth.causes) or "any", one.made.name), Counter())
        row["runs"] += 1
        row["right"] += not one.wrong
        if one.wrong:
            row[f"{one.verdict.kind} ({one.verdict.cause}), wrong: {one.wrong}"] += 1
    lines = ["| truth | cause | what was done | runs | right | said of the others |", "|---|---|---|---|---|---|"]
    for key, counts in sorted(said.items()):
        others = "; ".join(f"{count} x {what}" for what, count in counts.items() if what not in ("runs", "right"))
        lines.append(f"| {' | '.join(key)} | {counts['runs']} | {counts['right']} | {others} |")
    return "\n".join(lines)


def kinds(scored: Iterable[Scored]) -> str:
    """A Markdown table of the kinds: truth by row, verdict by column."""
    counts = Counter((one.made.truth.kind, one.verdict.kind) for one in scored)
    names = sorted({name for pair in counts for name in pair})
    lines = [f"| truth \\ verdict | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(str(counts[row, name] or '') for name in names)} |" for row in names]
    return "\n".join(lines)


def seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--failing", type=seeds, default=FAILING, help="seeds of the failing runs (default: 100:110)")
    parser.add_argument("--healthy", type=seeds, default=HEALTHY, help="seeds of the healthy runs (default: 100:105)")
    parser.add_argument("--folder", type=Path, help="where runs are kept (default: a new folder)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default: 1)")
    parser.add_argument("--log", action="store_true", help="read the Monitor's log, not the CSV")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="runs-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    scored = [score(made, given.log) for made in made_all(folder, wanted(given.failing, given.healthy), given.jobs)]
    failing = [one for one in scored if one.made.truth.kind != "healthy"]
    alarms = [one for one in scored if one.made.truth.kind == "healthy" and one.wrong]
    print(confusion(scored), kinds(scored), sep="\n\n")
    for one in scored:
        if one.wrong:
            print(f"\n{one}")
    right = sum(not one.wrong for one in failing)
    print(f"\nfailing: {right} of {len(failing)} right; healthy: {len(alarms)} of {len(scored) - len(failing)} alarmed")
    return 0 if right >= LEAST_RIGHT * len(failing) and not alarms else 1


if __name__ == "__main__":
    sys.exit(main())
