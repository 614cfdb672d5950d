"""examples/recover.py: four faults on one of two ranks, and a training that ends as it would have without them."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.processes import REPOSITORY, run

pytestmark = pytest.mark.breadth(0)  # a demonstration of what tests/training/guard tests part by part

EXAMPLES = REPOSITORY / "examples"
STEPS, SEEDS = 96, 4


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The program run once, in a short form: its output, and the folder with everything that it has written."""
    out = tmp_path_factory.mktemp("recover")
    program = [sys.executable, str(EXAMPLES / "recover.py"), "--out", str(out)]
    ended = run([*program, "--steps", str(STEPS), "--seeds", str(SEEDS)])
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return ended.stdout, out


@pytest.fixture(scope="module")
def events(example):
    _, out = example
    lines = [json.loads(line) for line in (out / "recovered" / "recovery.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "step"]


def test_the_log_has_the_four_faults_with_step_rank_cause_and_action(events):
    told = [(event["step"], event["rank"], event["cause"], event["action"]) for event in events]
    assert told == [
        (20, 1, "operation", "skip"),
        (40, 1, "transient", "retry"),
        (60, 1, "model", "rollback"),
        (80, 1, "out_of_memory", "split"),
    ]


def test_the_log_states_the_anomaly_and_its_origin(events):
    batch, gradient, weight, memory = events
    train, faults = EXAMPLES / "recovery" / "train.py", EXAMPLES / "recovery" / "faults.py"
    assert batch["seen"] == "loss is nan"
    divides = f"examples/recovery/train.py:{line_of(train, '.sum() / ')}"
    assert re.search(rf"aten::div at \S*{re.escape(divides)}:", batch["origin"])  # from the root or from sys.path
    assert "0/0" in batch["origin"]
    assert "transformer.h.0.mlp.c_fc.weight (inf 1)" in gradient["seen"]
    assert (gradient["verdict"], gradient["origin"]) == ("transient", "")
    assert "in parameter transformer.h." in weight["origin"]
    assert ".ln_" in weight["model_note"]
    assert weight["snapshot"] == 56
    assert "no room for 8 rows" in memory["seen"]
    assert f"{faults}:{line_of(faults, 'OutOfMemoryError')}" in memory["seen"]


def test_both_ranks_end_with_the_same_weights(example):
    printed, out = example
    assert "weights of the 2 ranks in the end: the same" in printed
    first, second = (json.loads((out / "recovered" / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first["weights"] == second["weights"]
    assert first["history"][-1][0] == second["history"][-1][0] == STEPS


def test_the_guard_changes_nothing_until_the_first_fault(example):
    _, out = example
    clean, recovered = (
        json.loads((out / name / "rank-1.json").read_text())["history"] for name in ("clean-0", "recovered")
    )
    assert recovered[:19] == clean[:19]


def test_the_loss_ends_within_the_noise_of_clean_runs(example):
    printed, _ = example
    assert printed.count("   within noise (") == 2
    assert "NOT WITHIN" not in printed


def test_every_capture_is_whole_and_there_is_one_of_each_rank(example):
    _, out = example
    names = sorted(path.name for path in (out / "recovered" / "captures").iterdir())
    assert names == [f"rank-{rank}-step-{step:08d}" for rank in range(2) for step in (20, 40, 60)]
    assert not list(out.rglob("*partial*"))
    operations = sorted(path.parent.name for path in out.rglob("operation.safetensors"))
    assert operations == ["rank-1-step-00000020", "rank-1-step-00000060"]


def test_the_captured_bad_batch_fails_again_in_one_process(example):
    _, out = example
    capture = out / "recovered" / "captures" / "rank-1-step-00000020"
    command = [sys.executable, "-m", "torchnan", "replay", str(capture)]
    ended = run([*command, "--step", "train:loss_of", "--model", "train:new_model"], cwd=EXAMPLES / "recovery")
    assert "reproduced, twice, with the same origin" in ended.stdout, ended.stdout + ended.stderr
    assert "the same as when it was captured" in ended.stdout


def test_the_picture_is_drawn_and_named(example):
    pytest.importorskip("matplotlib")
    printed, out = example
    assert str(out / "losses.svg") in printed
    assert "</svg>" in (out / "losses.svg").read_text()


def line_of(path, text):
    """The number in the only line that contains this text."""
    [line] = [i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return line
