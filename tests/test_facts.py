"""Pages that state the same fact agree: which Pythons and PyTorch releases there are, and what was measured."""

from __future__ import annotations

import re

import pytest

from tests.packaging import build_wheel
from tests.support.processes import REPOSITORY

FIRST, LAST = build_wheel.PYTHONS[0], build_wheel.PYTHONS[-1]
AFTER_LAST = f"3.{int(LAST.partition('.')[2]) + 1}"


def text_of(path: str) -> str:
    return (REPOSITORY / path).read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/limits.md"])
def test_pages_name_the_same_pythons(page):
    stated = re.findall(r"Python (3\.\d+) to (3\.\d+)", text_of(page))
    assert set(stated) == {(FIRST, LAST)}


def test_the_package_takes_the_pythons_that_it_is_built_for():
    project = text_of("pyproject.toml")
    assert f'requires-python = ">={FIRST},<{AFTER_LAST}"' in project
    assert tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)) == build_wheel.PYTHONS
    (built,) = re.findall(r"^ +python: \[(.+)\]$", text_of(".github/workflows/test.yml"), re.MULTILINE)
    assert tuple(re.findall(r'"(.+?)"', built)) == build_wheel.PYTHONS


@pytest.mark.parametrize("source", ["frame_walk.cpp", "thread_switches.cpp"])
def test_the_core_knows_the_pythons_that_it_is_built_for(source):
    (numbers,) = re.findall(
        r"PY_VERSION_HEX < 0x03(..)0000 \|\| PY_VERSION_HEX >= 0x03(..)0000", text_of(f"csrc/python/{source}")
    )
    assert [f"3.{int(number, 16)}" for number in numbers] == [FIRST, AFTER_LAST]
    assert f"Python {FIRST} to {LAST}" in text_of(f"csrc/python/{source}")


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/release.md"])
def test_pages_name_the_same_releases_of_pytorch(page):
    stated = re.findall(r"PyTorch\s+from (2\.\d+) to (2\.\d+)", text_of(page))
    assert set(stated) == {(build_wheel.RELEASES[0], build_wheel.RELEASES[-1])}


def test_no_page_says_that_no_gpu_has_run_it():
    """docs/gpu.md has figures of one."""
    assert "## Measured on an H200" in text_of("docs/gpu.md")
    for page in (REPOSITORY / "docs").rglob("*.md"):
        denied = re.findall(
            r"(?i)nothing has been measured on a GPU|no figures of a GPU|GPU has not been measured", page.read_text()
        )
        assert denied == [], page
