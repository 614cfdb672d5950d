"""docs/parity.md names tests that exist."""

from __future__ import annotations

import re

import pytest

from support import REPOSITORY

NAMED = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (REPOSITORY / "docs" / "parity.md").read_text())


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED)))
def test_a_test_that_is_named_exists(file, test):
    assert f"def {test}(" in (REPOSITORY / "tests" / "python" / file).read_text()


def test_there_are_some():
    assert len(NAMED) > 40
