"""The zoo: programs with a known origin, scored as anybody would score them."""

from __future__ import annotations

import pytest

from tests.zoo.framework import PROGRAMS
from tests.zoo.run_score import ZOO, score

THEMES = sorted(str(path.relative_to(PROGRAMS)) for path in PROGRAMS.glob("*/*.py") if path.name != "__init__.py")


@pytest.mark.breadth(5)
@pytest.mark.guarantee(3)
@pytest.mark.parametrize("theme", THEMES)
def test_every_origin_is_exact_and_no_alarm_is_false(theme, tmp_path, figure):
    ended, rows = score(PROGRAMS / theme, ZOO / "adapter.py", tmp_path)
    debatable = {row["id"] for row in rows if row["apart"]} if not theme.startswith("open/") else set()
    wrong = {row["id"]: row["verdict"] for row in rows if not row["exact"] and row["id"] not in debatable}
    assert wrong == {}, ended.stdout
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counted = [row["kind"] for row in rows if row["id"] not in debatable]
    clean = counted.count("clean")
    figure(
        "{bugs} programs with a known origin, all exact; {clean} clean ones, all silent",
        bugs=len(counted) - clean,
        clean=clean,
    )
