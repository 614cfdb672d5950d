"""examples/diagnose.py: a training that goes wrong twice, and its diagnosis during the run and afterwards."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.processes import REPOSITORY, run

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The program run once, and the folder with everything that it has written."""
    out = tmp_path_factory.mktemp("diagnose")
    ended = run([sys.executable, str(REPOSITORY / "examples" / "diagnose.py"), "--out", str(out)])
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return ended, out


def test_it_warns_at_the_steps_where_it_becomes_true(example):
    ended, _ = example
    assert "torchnan: spike from step 240 on: long tail batch" in ended.stderr
    assert "torchnan: persistent elevation from step 421 on: learning rate discontinuity" in ended.stderr


def test_the_log_has_every_step_and_the_live_verdicts(example):
    _, out = example
    lines = [json.loads(line) for line in (out / "run.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) == 600
    said = {(line["verdict"]["kind"], line["verdict"]["first_step"]) for line in lines if "verdict" in line}
    assert {("spike", 240), ("persistent_elevation", 421)} <= said


def test_the_walk_names_the_worse_one_first(example):
    ended, _ = example
    first = ended.stdout.index("PERSISTENT ELEVATION, steps 421 to 599")
    assert "the learning rate jumps from 0.004 to 0.2 at step 420" in ended.stdout[first:]
    assert first < ended.stdout.index("SPIKE, step 240")


def test_page_and_post_mortem_are_written(example):
    ended, out = example
    assert "long tail batch" in (out / "report.html").read_text()
    assert "421" in (out / "post-mortem.md").read_text()
    assert str(out / "report.html") in ended.stdout
