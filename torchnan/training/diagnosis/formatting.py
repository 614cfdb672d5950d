"""Formats numbers, steps and names for messages."""

from __future__ import annotations

from torchnan.training.diagnosis.arrays import IntArray
from torchnan.training.diagnosis.verdict import Verdict

MAX_STEPS = 5


def display_name(name: str) -> str:
    """Returns a kind or a cause in readable words: ``"lr_increasing"`` becomes ``"learning rate increasing"``."""
    return name.replace("_", " ").replace("fp16", "float16").replace("lr ", "learning rate ")


def describe_confidence(verdict: Verdict) -> str:
    """Returns how sure a verdict is, and how sure its cause if that differs."""
    certainty = verdict.certainty if verdict.suspects else verdict.confidence
    return verdict.confidence if certainty == verdict.confidence else f"{verdict.confidence}, its cause {certainty}"


def describe_steps(verdict: Verdict) -> str:
    """Returns the steps of a verdict: ``"steps 5 to 7"``, or ``"step 5"``."""
    first, last = verdict.first_step, verdict.last_step
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def format_number(value: float) -> str:
    """Returns a number with four significant digits; without an exponent from 1,000 to a billion."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:,.4g}"


def format_steps(steps: IntArray) -> str:
    """Returns the first few steps, and how many more there are."""
    shown = ", ".join(f"{step:,}" for step in steps[:MAX_STEPS].tolist())
    return shown if len(steps) <= MAX_STEPS else f"{shown} and {len(steps) - MAX_STEPS:,} more"
