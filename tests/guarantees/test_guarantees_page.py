"""docs/guarantees.md is up to date: its tests exist, and its figures are the last ones."""

from __future__ import annotations

import json

import pytest

from tests.support import write_guarantees_page as page


def test_the_page_is_written_from_the_guarantees_and_figures():
    assert page.PAGE.read_text() == page.text(), "run: python -m tests.support.write_guarantees_page"


@pytest.mark.parametrize("guarantee", page.guarantees(), ids=lambda guarantee: guarantee["name"])
def test_a_guarantee_names_tests_that_exist(guarantee):
    assert [test for test in guarantee["tests"] if not (page.REPOSITORY / test).is_file()] == []


def test_a_figure_is_of_a_test_that_exists_and_of_a_guarantee():
    numbers = [guarantee["number"] for guarantee in page.guarantees()]
    assert numbers == list(range(1, len(numbers) + 1))
    for test, (number, _) in json.loads((page.DATA / "figures.json").read_text()).items():
        file, name = test.split("::", 1)
        assert f"def {name.split('[')[0]}(" in (page.REPOSITORY / file).read_text(), test
        assert number in numbers
