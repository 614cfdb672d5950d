"""The zoo: programs with a known origin, scored like any detector."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from tests.support.processes import run
from tests.zoo import framework
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


def test_a_run_that_was_stopped_goes_on(tmp_path):
    """The first case stands in the file, with a verdict that it would not get again: it is not run again."""
    programs, first, second = PROGRAMS / "open", "distilbert-all-pad-sample", "gradient-magnitude-flat"
    score(programs, ZOO / "adapter.py", tmp_path, [first])
    scores = tmp_path / "scores.json"
    kept = json.loads(scores.read_text())
    kept["rows"][0].update(verdict="missed", exact=False)
    scores.write_text(json.dumps(kept))
    ended, rows = score(programs, ZOO / "adapter.py", tmp_path, ["--resume", first, second])
    assert [(row["id"], row["verdict"]) for row in rows] == [(first, "missed"), (second, "exact")]
    assert "exact origin 1 of 2" in ended.stdout
    assert ended.returncode == 1


def test_going_on_needs_the_file_of_the_stopped_run():
    ended = run([sys.executable, str(ZOO / "score.py"), "--adapter", str(ZOO / "adapter.py"), "--resume"], deadline=600)
    assert ended.returncode == 2
    assert "--resume needs --json OUT: the file of the run that was stopped" in ended.stderr


def test_a_bug_that_pytorch_has_mended_is_a_clean_program(monkeypatch):
    monkeypatch.setattr(framework, "CASES", {})
    monkeypatch.setattr(torch, "__version__", "2.14.1+cu130")
    for until in ("2.13", "2.14", "2.15"):
        framework.case(until, "", "", "", "nan", "div", node="DivBackward0", until=until)(lambda: None)
    known = {name: (case.kind, case.origin, case.phase) for name, case in framework.CASES.items()}
    clean = ("clean", "none", "none")
    assert known == {"2.13": clean, "2.14": clean, "2.15": ("nan", "op", "backward")}
