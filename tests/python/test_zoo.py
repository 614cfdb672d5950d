"""The zoo: programs with a known origin, scored as anybody would score them."""

from __future__ import annotations

import json
import sys

from support import REPOSITORY, run

ZOO = REPOSITORY / "tests" / "zoo"


def test_the_open_zoo(tmp_path):
    scores = tmp_path / "scores.json"
    ended = run([sys.executable, str(ZOO / "score.py"), "--adapter", str(ZOO / "adapter.py"), "--json", str(scores)])
    rows = json.loads(scores.read_text())["rows"]
    wrong = {row["id"]: row["verdict"] for row in rows if not row["exact"]}
    assert wrong == {}, ended.stdout
