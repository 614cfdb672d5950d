"""Runs a case plain and under torchnan, each in a process that shares nothing with the other; compares the facts."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.side_effects.program import BAD, KNOWN_DIFFERENCES, Case
from tests.support.forked_python import run_forked
from tests.support.processes import REPOSITORY

DEADLINE = 120  # seconds; only a hang reaches it
CODE = "from tests.side_effects.run import main; main()"
IMPORTS = ("tests.side_effects.warm",)  # once, instead of in each process
# Addresses, durations, and the dates and identifiers of logs.
CHANGING = re.compile(
    r"0x[0-9a-f]{6,}|\d+(\.\d+)? ?m?s\b|[IWEV]\d{4} [\d:.]+ +\d+|[\d-]{10} [\d:]{8} \d+:\d+"
    r"|[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}"
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        facts: by facet, also ``printed`` and ``end``.
        findings: those of its sessions, a line each.
        internal_errors: how many errors of torchnan its sessions have counted.
    """

    facts: dict[str, list[str]]
    findings: list[str]
    internal_errors: int


def outcome(case: Case, *, watched: bool) -> Outcome:
    """Runs a case in a fork of a process that has imported PyTorch and its compiler."""
    with tempfile.TemporaryDirectory() as folder:
        file, cache, cwd = (Path(folder, name) for name in ("result.json", "torchinductor", "cwd"))
        cache.mkdir()
        cwd.mkdir()
        try:
            ended = run_forked(
                CODE,
                case.program.function.__module__,
                *str(case).split(),
                "watched" if watched else "plain",
                str(file),
                cwd=cwd,
                deadline=DEADLINE,
                imports=IMPORTS,
                PYTHONPATH=str(REPOSITORY),
                TORCHINDUCTOR_CACHE_DIR=str(cache),
            )
        except AssertionError as error:  # the message has the stacks
            return Outcome({"end": [f"no end after {DEADLINE} s", *str(error).splitlines()[1:]]}, [], 0)
        result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"facts": {}}
    printed = CHANGING.sub("...", ended.stdout + ended.stderr)
    facts = result["facts"] | {"printed": printed.splitlines(), "end": [f"status {ended.returncode}"]}
    return Outcome(facts, result.get("findings", []), result.get("internal errors", 0))


def differences(one: dict[str, list[str]], other: dict[str, list[str]]) -> dict[str, str]:
    """Returns a diff for each facet that differs."""
    differing = [facet for facet in {**one, **other} if one.get(facet, []) != other.get(facet, [])]
    return {facet: _diff(one.get(facet, []), other.get(facet, [])) for facet in differing}


def _diff(one: list[str], other: list[str]) -> str:
    lines = difflib.unified_diff(one, other, "plain", "under torchnan", n=0, lineterm="")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A case run twice."""

    case: Case
    plain: Outcome
    watched: Outcome

    @classmethod
    def of(cls, case: Case) -> Comparison:
        return cls(case, outcome(case, watched=False), outcome(case, watched=True))

    @classmethod
    def of_itself(cls, case: Case) -> Comparison:
        """Returns two plain runs: what differs there depends on chance."""
        return cls(case, outcome(case, watched=False), outcome(case, watched=False))

    @functools.cached_property
    def differences(self) -> dict[str, str]:
        """The facets that differ, each with its diff. What a guard prints is not compared: its decisions."""
        compared = differences(self.plain.facts, self.watched.facts)
        return {facet: diff for facet, diff in compared.items() if facet != "printed" or not self.case.program.guards}

    def assert_unnoticed(self) -> None:
        """Fails with the faults of the case and its differences."""
        faults = self.faults()
        assert not faults, f"{faults}\n{self}"

    def faults(self) -> list[str]:
        """Returns why the case fails, a line each: differences that are not known, known ones that are gone, a program
        that fails by itself, errors of torchnan, and a finding too many or too few."""
        known = self.case.known_differences
        faults = []
        if self.differences and not known:
            faults.append(f"torchnan changes {', '.join(self.differences)}")
        if "the program: none" not in self.plain.facts.get("exceptions", []):
            faults.append("the program fails without torchnan, so that it shows nothing")
        if known and not self.differences:
            faults.append(f"it no longer differs: remove it from {KNOWN_DIFFERENCES.name} (--unmark does)")
        if known or self.case.program.guards:
            return faults
        if self.watched.internal_errors:
            faults.append(f"{self.watched.internal_errors} internal errors")
        reported = any(finding.startswith("error") for finding in self.watched.findings)
        expected = self.case.variant == BAD and self.case.program.reports
        if reported != expected:
            faults.append(f"a finding of level error is {'missing' if expected else 'too many'}")
        return faults

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.case}: no difference; found {self.watched.findings}"
        parts = [f"{self.case}: torchnan changes {', '.join(self.differences)}"]
        parts += [f"--- {facet}\n{diff}" for facet, diff in self.differences.items()]
        return "\n".join([*parts, f"found {self.watched.findings}", f"again: {command(self.case)}"])


def command(case: Case) -> str:
    """Returns the command that compares a case, to be run in the root of the repository."""
    return f"python -m tests.side_effects {case}"
