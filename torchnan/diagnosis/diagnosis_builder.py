"""The walk as it is written down: the questions, and the verdicts they lead to."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchnan.diagnosis.remedies import remedy_and_check
from torchnan.diagnosis.verdict import Confidence, Kind, Question, Suspect, Verdict


@dataclasses.dataclass
class DiagnosisBuilder:
    """Grows while the sections are walked."""

    questions: list[Question] = dataclasses.field(default_factory=list)
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)

    def answer(self, number: str, text: str, answer: str, evidence: str = "") -> None:
        """One question, and what the run answers."""
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
        """One verdict, of which the first suspect is the cause."""
        cause = suspects[0].cause if suspects else "unknown"
        remedy, check = remedy_and_check(kind, cause, steps[0])
        told = {name: value for name, value in evidence.items() if value is not None}
        self.verdicts.append(Verdict(kind, cause, *steps, told, confidence, remedy, branch, check, tuple(suspects)))
