"""docs/why_nan.md: the report of every program is the one that the page shows."""

from __future__ import annotations

import pytest

from tests.support.write_cookbook import PAGE, SECTION, report_of

SECTIONS = {f"{match[1]}. {match[2]}": (match[4], match[5]) for match in SECTION.finditer(PAGE.read_text())}


@pytest.mark.filterwarnings("ignore:std\\(\\):UserWarning")
@pytest.mark.parametrize("title", SECTIONS)
def test_a_program_is_reported_as_shown(title):
    """To write the current reports into the page: python -m tests.support.write_cookbook."""
    program, shown = SECTIONS[title]
    assert report_of(program) == shown
    assert "  made by   " in shown


def test_the_page_has_as_many_causes_as_it_says():
    assert PAGE.read_text().splitlines()[2].startswith("Thirty-six causes")
    assert len(SECTIONS) == 36
