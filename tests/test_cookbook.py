"""docs/why_nan.md: the report of every program, and what its remedies do, is what the page shows."""

from __future__ import annotations

import re
import runpy

import pytest
import torch

import torchnan
from tests.support.write_cookbook import PAGE, SECTION, remedies_of, report_of

SECTIONS = {f"{match[1]}. {match[2]}": (match[4], match[5], match[7]) for match in SECTION.finditer(PAGE.read_text())}


@pytest.mark.filterwarnings("ignore:std\\(\\):UserWarning")
@pytest.mark.parametrize("title", SECTIONS)
def test_a_program_is_reported_as_shown(title):
    """To write the current reports into the page: python -m tests.support.write_cookbook."""
    program, shown, _ = SECTIONS[title]
    assert report_of(program) == shown
    assert "  made by   " in shown


@pytest.mark.filterwarnings("ignore:std\\(\\):UserWarning")
@pytest.mark.breadth(6)
@pytest.mark.parametrize("title", SECTIONS)
def test_a_remedy_of_each_program_works_as_shown(title):
    program, _, shown = SECTIONS[title]
    assert remedies_of(program) == shown
    is_beyond_remedy = title.endswith("A bad weight in a checkpoint")
    assert is_beyond_remedy or re.search(r"^  .*  finite\b", shown, re.MULTILINE)


# The number of a section, and of the one with the same reason that the report names.
SAME = {3: 4, 5: 4, 12: 11, 13: 11, 32: 16, 33: 25, 35: 11}


@pytest.mark.filterwarnings("ignore:std\\(\\):UserWarning")
@pytest.mark.parametrize("title", SECTIONS)
def test_a_report_ends_with_the_section_on_its_cause(title, tmp_path):
    (tmp_path / "train.py").write_text(SECTIONS[title][0])
    torch.manual_seed(0)
    with torchnan.detect(action="log") as watch:
        kept = runpy.run_path(str(tmp_path / "train.py"))
    assert kept
    assert watch.first is not None
    number = int(title.partition(".")[0])
    (expected,) = (one for one in SECTIONS if one.startswith(f"{SAME.get(number, number)}. "))
    assert str(watch.first).endswith(f"\n  see       docs/why_nan.md, {expected}")


def test_the_page_has_as_many_causes_as_it_says():
    assert PAGE.read_text().splitlines()[2].startswith("Thirty-six causes")
    assert len(SECTIONS) == 36
