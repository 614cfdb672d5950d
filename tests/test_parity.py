"""tests/parity.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAMED = re.findall(r"`([\w/]*test_\w+\.py)::(test_\w+)`", (TESTS / "parity.md").read_text())
NAMED_IN_CPP = re.findall(r"`([\w/]*_test\.cpp)::(\w+)\.(\w+)`", (TESTS / "parity.md").read_text())


@pytest.mark.parametrize(("file", "suite", "test"), sorted(set(NAMED_IN_CPP)))
def test_a_test_in_cpp_that_is_named_exists(file, suite, test):
    assert f"({suite}, {test})" in (TESTS / file).read_text()


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED)))
def test_a_test_that_is_named_exists(file, test):
    assert f"def {test}(" in (TESTS / file).read_text()


def test_there_are_some():
    assert len(NAMED) > 40
