"""Programs as users write them, without torchnan and under ``detect(action="log")``: they may not notice it.

Each runs in two processes, and every fact is compared: values, random states, calls of hooks and functions, warnings,
exceptions with their frames, compilations, lifetimes, threads, files, signals, modes and settings.
"""

from __future__ import annotations

import pytest

from tests.side_effects.comparison import Comparison
from tests.side_effects.program import Case, all_cases
from tests.side_effects.spy import spy


@pytest.mark.breadth(12)
@pytest.mark.parametrize("case", all_cases("cpu"), ids=str)
def test_a_program_does_not_notice_torchnan(case):
    Comparison.of(case).assert_unnoticed()


def test_the_comparison_notices_every_difference():
    compared = Comparison.of(Case(spy, "healthy", "compiled", "cpu"))
    assert set(compared.differences) == {
        "values",
        "calls",
        "exceptions",
        "warnings",
        "random states",
        "compilations",
        "times of the compiler",
        "lifetimes",
        "threads",
        "open files",
        "signals",
        "modes",
        "settings",
        "printed",
        "end",
    }
    assert compared.faults()
    assert "+seen = 1" in str(compared)
