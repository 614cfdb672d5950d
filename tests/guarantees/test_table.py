"""docs/guarantees.md tells what is there: its tests exist, its figures are the last ones."""

from __future__ import annotations

import json

import pytest

import table


def test_the_page_is_written_from_the_promises_and_figures():
    assert table.PAGE.read_text() == table.text(), "run: python tests/guarantees/table.py"


@pytest.mark.parametrize("promise", table.promises(), ids=lambda promise: promise["name"])
def test_a_promise_names_tests_that_exist(promise):
    assert [test for test in promise["tests"] if not (table.REPOSITORY / test).is_file()] == []


def test_a_figure_is_of_a_test_that_exists_and_of_a_promise():
    numbers = [promise["number"] for promise in table.promises()]
    assert numbers == list(range(1, len(numbers) + 1))
    for test, (bar, _) in json.loads((table.HERE / "figures.json").read_text()).items():
        file, name = test.split("::", 1)
        assert f"def {name.split('[')[0]}(" in (table.REPOSITORY / file).read_text(), test
        assert bar in numbers
