"""The zoo on a device: programs with a known origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import zoo_scores

HERE = Path(__file__).resolve().parent
FILES = [
    "zoo_open",
    *(pytest.param(f"zoo_{name}", marks=pytest.mark.slow) for name in ("forward", "backward", "data", "clean")),
]


@pytest.mark.parametrize("file", FILES)
def test_what_can_be_run_there_is_told_as_on_the_host(machine, file, tmp_path):
    ended, rows = zoo_scores(file, HERE / "zoo_adapter.py", tmp_path)
    here = [row for row in rows if not _cannot_be_run(row["detail"])]
    wrong = {row["id"]: (row["verdict"], row["detail"]) for row in here if not row["exact"] and not row["apart"]}
    assert wrong == {}, ended.stdout
    assert len(here) >= len(rows) / 2, "too few of the programs can be run on this device to say anything"


def _cannot_be_run(detail):
    return isinstance(detail, list) and any("why" in finding for finding in detail)
