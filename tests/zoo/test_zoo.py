"""The zoo: programs with a known origin, scored as anybody would score them."""

from __future__ import annotations

import pytest

from tests.support.processes import REPOSITORY, zoo_scores

ZOO = REPOSITORY / "tests" / "zoo"


FILES = ["zoo_open", "zoo_forward", "zoo_backward", "zoo_data", "zoo_clean"]


@pytest.mark.breadth(1)
@pytest.mark.guarantee(3)
@pytest.mark.parametrize("file", FILES)
def test_every_origin_is_exact_and_no_alarm_is_false(file, tmp_path, figure):
    ended, rows = zoo_scores(file, ZOO / "adapter.py", tmp_path)
    debatable = {row["id"] for row in rows if row["apart"]} if file != "zoo_open" else set()
    wrong = {row["id"]: row["verdict"] for row in rows if not row["exact"] and row["id"] not in debatable}
    assert wrong == {}, ended.stdout
    assert ended.returncode == 0
    counted = [row["kind"] for row in rows if row["id"] not in debatable]
    clean = counted.count("clean")
    figure(
        "{bugs} programs with a known origin, all exact; {clean} clean ones, all silent",
        bugs=len(counted) - clean,
        clean=clean,
    )
