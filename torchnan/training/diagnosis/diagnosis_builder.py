"""Collects the answers and verdicts of a diagnosis."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchnan.training.diagnosis.remedies import remedy_and_check
from torchnan.training.diagnosis.verdict import Confidence, Kind, Question, Suspect, Verdict


@dataclasses.dataclass
class DiagnosisBuilder:
    """Answers and verdicts so far; each section of the tree adds its own."""

    questions: list[Question] = dataclasses.field(default_factory=list)
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)

    def answer(self, number: str, text: str, answer: str, evidence: str = "") -> None:
        """Adds a question and the answer that the run gives to it."""
        self.questions.append(Question(number, text, answer, evidence))

    def add_verdict(
        self,
        kind: Kind,
        suspects: list[Suspect],
        steps: tuple[int, int],
        branch: str,
        *,
        confidence: Confidence = "likely",
        **evidence: Any,
    ) -> None:
        """Adds a verdict, whose cause is that of the first suspect."""
        cause = suspects[0].cause if suspects else "unknown"
        remedy, check = remedy_and_check(kind, cause, steps[0], evidence.get("origin"), evidence.get("place"))
        known = {name: value for name, value in evidence.items() if value is not None}
        self.verdicts.append(Verdict(kind, cause, *steps, known, confidence, remedy, branch, check, tuple(suspects)))
