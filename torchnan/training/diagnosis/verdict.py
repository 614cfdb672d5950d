"""The result of a diagnosis."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from torchnan.config.policy import Instability
from torchnan.config.text import printable

Kind = Literal[Instability, "dead_gradients", "not_learning", "overfitting", "undetermined", "healthy"]

Cause = Literal[
    "log_zero",
    "zero_by_zero",
    "activation_overflow",
    "gradient_overflow",
    "scaler_off",
    "structural",
    "data",
    "parameter",
    "uninitialised",
    "long_tail_batch",
    "lr_discontinuity",
    "duplicate_batch",
    "corrupted_moments",
    "lr_increasing",
    "weight_norm",
    "gradient_trend",
    "data_changed",
    "converged",
    "lr_zero",
    "chance_level",
    "no_gradient",
    "memorised",
    "none",
    "unknown",
]

Confidence = Literal["certain", "likely", "possible"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of the decision tree, and the run's answer.

    Attributes:
        number: ``"Q2.1"``.
        text: the question.
        answer: ``"yes"``, ``"no"``, or what was found.
        evidence: the numbers behind the answer.
    """

    number: str
    text: str
    answer: str
    evidence: str = ""


@dataclasses.dataclass(frozen=True)
class Suspect:
    """A possible cause, and the evidence for it."""

    cause: Cause
    confidence: Confidence
    evidence: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A problem of a run, or the statement that there is none.

    Attributes:
        kind: what is wrong.
        cause: why, as far as the log shows; that of the first of ``suspects``.
        first_step: step at which it begins; ``last_step``: step at which it ends, or the last of the run.
        evidence: numbers and words, by name.
        confidence: of the kind, not of its cause. ``"certain"``: the log says so; ``"likely"``: the conditions of the
            rule hold, and chance was excluded; ``"possible"``: by elimination, or some of the evidence is not in the
            log.
        remedy: what to do; ``check``: how to verify the verdict.
        branch: path through the tree, ``"Q1.1 -> Q2.1 -> Q2.2 -> Q2.3"``.
        suspects: possible causes, the likeliest first.
    """

    kind: Kind
    cause: Cause
    first_step: int
    last_step: int
    evidence: dict[str, Any]
    confidence: Confidence
    remedy: str
    branch: str
    check: str
    suspects: tuple[Suspect, ...] = ()

    @property
    def certainty(self) -> Confidence:
        """How sure the cause is: that of the first suspect."""
        return self.suspects[0].confidence if self.suspects else "possible"

    @property
    def is_bad(self) -> bool:
        """Whether something is wrong with the run."""
        return self.kind not in ("healthy", "undetermined")


@dataclasses.dataclass(frozen=True)
class Forecast:
    """An output that is about to leave the range of its dtype.

    Attributes:
        module: name of the module.
        dtype: dtype of the output; ``enough``: a dtype with sufficient range.
        step: step of the newest value; ``largest``: that value; ``share``: of the dtype's range, 0 to 1.
        doubling: steps in which it doubles; ``None`` if it does not grow.
        overflow: step at which it is expected to leave the range; ``None`` if it does not grow.
    """

    module: str
    dtype: str
    enough: str
    step: int
    largest: float
    share: float
    doubling: float | None = None
    overflow: int | None = None

    def __str__(self) -> str:
        grows = "does not grow"
        if self.doubling is not None and self.overflow is not None:
            grows = f"doubles every {self.doubling:,.0f} steps: overflow expected near step {self.overflow:,}"
        short = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
        dtype = short.get(self.dtype) or printable(self.dtype)
        text = f"{printable(self.module)} output reached {_percent(self.share)} of {dtype}'s range and {grows}"
        return f"{text}; {self.enough} would do"


def _percent(share: float) -> str:
    """Formats a share with two significant digits, however small."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


@dataclasses.dataclass
class Diagnosis:
    """The result of walking the decision tree.

    Attributes:
        verdicts: the worst first. If nothing is wrong, one of kind ``"healthy"``; or ``"undetermined"``, if the log
            does not show enough to say that.
        walk: the questions, in the order they were asked.
        forecasts: outputs near the limit of their dtype's range.
        part: name of the part of the run that the first verdict and the questions are about; ``""`` if it has none.
    """

    verdicts: list[Verdict]
    walk: list[Question]
    forecasts: list[Forecast] = dataclasses.field(default_factory=list)
    part: str = ""
