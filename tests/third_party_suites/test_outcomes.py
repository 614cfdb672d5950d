"""tests/third_party_suites/: that a changed outcome is named. The suites themselves are run by ``make suites``."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import REPOSITORY, run

SUITES = REPOSITORY / "tests" / "third_party_suites"

# Its tests behave like a suite under a detector that disturbs it.
PLANTED = """
import os, random, warnings
import pytest
import torch

watched = "DISTURBED" in os.environ

def test_that_is_the_same():
    print(random.random(), torch.rand(1))

def test_that_fails_when_watched():
    assert not watched

def test_that_warns_when_watched():
    if watched:
        warnings.warn("disturbed")

@pytest.mark.skipif(watched, reason="watched")
def test_that_is_skipped_when_watched():
    pass

def test_that_crashes_when_watched():
    if watched:
        os._exit(1)

def test_after_the_crash():
    pass
"""


def outcomes_of(folder, name, **variables):
    from tests.third_party_suites import outcomes

    out = folder / f"{name}.jsonl"
    options = ["-q", "-p", "outcomes", "-p", "no:cacheprovider", "--rootdir=."]
    run(
        [sys.executable, "-m", "pytest", *options, "test_planted.py"],
        cwd=folder,
        PYTHONPATH=str(SUITES),
        SUITES_OUTCOMES=str(out),
        **variables,
    )
    return outcomes.read(out, seconds=0)


@pytest.mark.breadth(0)
def test_every_way_to_change_an_outcome_is_named(tmp_path):
    (tmp_path / "test_planted.py").write_text(PLANTED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plain = outcomes_of(tmp_path, "plain")
    assert plain.differences(outcomes_of(tmp_path, "again")) == {}
    disturbed = outcomes_of(tmp_path, "disturbed", DISTURBED="1")
    changed = {test.rsplit("::", 1)[-1]: pair for test, pair in plain.differences(disturbed).items()}
    assert changed == {
        "test_that_fails_when_watched": ("passed", "failed"),
        "test_that_is_skipped_when_watched": ("passed", "setup skipped"),
        "test_that_crashes_when_watched": ("passed", "not run"),
        "test_after_the_crash": ("passed", "not run"),
        "(the whole run)": ("end 0", "not run"),
    }


def test_a_new_warning_is_named(tmp_path):
    warns = PLANTED.replace("os._exit(1)", "pass")
    (tmp_path / "test_planted.py").write_text(warns)
    plain, disturbed = outcomes_of(tmp_path, "plain"), outcomes_of(tmp_path, "disturbed", DISTURBED="1")
    assert disturbed.warnings - plain.warnings == {("test_planted.py::test_that_warns_when_watched", "UserWarning")}
