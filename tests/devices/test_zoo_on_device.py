"""The zoo on a device: programs with a known origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.conftest import NAME
from tests.devices.zoo_adapter import cannot_be_run, is_wrong
from tests.zoo.framework import PROGRAMS
from tests.zoo.run_score import score

HERE = Path(__file__).resolve().parent
WHERE = [
    "open/overflow.py",
    pytest.param("open", marks=pytest.mark.breadth(0)),
    *(pytest.param(folder, marks=pytest.mark.slow) for folder in ("forward", "backward", "data", "clean")),
]


@pytest.mark.parametrize("where", WHERE)
def test_programs_that_run_there_are_reported_as_on_the_host(machine, where, tmp_path):
    assert_reported_as_on_the_host(where, "zoo_adapter.py", tmp_path)


@pytest.mark.parametrize("where", WHERE)
def test_they_are_reported_as_well_by_operations_of_pytorch(machine, where, tmp_path, monkeypatch):
    if NAME != "lagging":
        pytest.skip("a GPU has a kernel")
    monkeypatch.setenv("LAGGING_SCANNER", "operations")
    assert_reported_as_on_the_host(where, "zoo_adapter.py", tmp_path)


@pytest.mark.breadth(0)
def test_compiled_programs_that_run_there_are_reported_as_on_the_host(machine, tmp_path):
    assert_reported_as_on_the_host("open/overflow.py", "compiled_zoo_adapter.py", tmp_path)


def assert_reported_as_on_the_host(where, adapter, tmp_path):
    ended, rows = score(PROGRAMS / where, HERE / adapter, tmp_path)
    here = [row for row in rows if not cannot_be_run(row)]
    wrong = {row["id"]: (row["verdict"], row["detail"]) for row in rows if is_wrong(row)}
    assert wrong == {}, ended.stdout
    least = len(rows) / 2 if (PROGRAMS / where).is_dir() else 1
    assert len(here) >= least, "too few of the programs can be run on this device to say anything"
