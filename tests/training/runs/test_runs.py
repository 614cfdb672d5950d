"""Real small trainings with one engineered failure each, and healthy ones: is the diagnosis right?"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import torchnan
from tests.training.runs import failing_runs, numeric_failures
from tests.training.runs.fault_visibility import shown
from tests.training.runs.generated_runs import FAILING, Made, made_all, make, wanted
from tests.training.runs.guarded_training import GuardedTraining
from tests.training.runs.run_specs import Draw, Truth
from tests.training.runs.score_runs import FAILING as FAILING_SEEDS
from tests.training.runs.score_runs import HEALTHY as HEALTHY_SEEDS
from tests.training.runs.score_runs import LEAST_RIGHT, Scored, confusion, kinds, score
from tests.training.runs.small_training import Training
from torchnan.config.policy import INSTABILITIES
from torchnan.diagnosis import diagnose, read

pytest.importorskip("transformers")

SHORT = (
    "rare_batch",
    "hard_batch",
    "rate_glitch",
    "stuck_loader",
    "served_twice",
    "rate_jump",
    "corrupted_moments",
    "label_noise",
    "endless_warmup",
    "decay_too_high",
    "log_of_zero",
    "grown_activations",
    "constant_scale",
    "collapsing_scale",
    "usual",
    "small_batches",
    "steps_down",
    "epochs",
    "half",
)


@pytest.mark.breadth(6)
@pytest.mark.parametrize("name", SHORT)
def test_the_table_of_a_run_and_the_log_of_a_monitor_get_the_right_verdict(name, tmp_path):
    made = make(tmp_path, (name, 0))
    for as_log in (False, True):
        one = score(made, as_log)
        assert not one.wrong, str(one)


@pytest.mark.slow
def test_95_percent_of_the_failing_runs_get_the_right_verdict_and_no_healthy_one_an_alarm(tmp_path):
    scored = [score(made, False) for made in made_all(tmp_path, wanted(FAILING_SEEDS, HEALTHY_SEEDS), jobs=1)]
    failing = [one for one in scored if one.made.truth.kind != "healthy"]
    healthy = [one for one in scored if one.made.truth.kind == "healthy"]
    print(confusion(scored), kinds(scored), *(one for one in scored if one.wrong), sep="\n\n")
    assert len(failing) >= 200
    assert len(healthy) >= 100
    assert [str(one) for one in healthy if one.wrong] == []
    assert sum(not one.wrong for one in failing) >= LEAST_RIGHT * len(failing)


def test_every_kind_that_the_tree_can_find_is_among_the_failing_runs():
    said = {maker(Draw(name, 0)).truth.kind for name, maker in FAILING.items()}
    assert said == set(INSTABILITIES)


def test_the_same_seed_is_the_same_run(tmp_path):
    first, again = (list(Training(replace(plan.setup, steps=5)).steps()) for plan in (usual_plan(), usual_plan()))
    assert first == again


def usual_plan():
    return failing_runs.hard_batch(Draw("hard_batch", 3))


def test_a_failure_that_training_shrugs_off_is_none():
    plan = usual_plan()
    usual = plan.setup.batch(0)  # in place of the hard one, too
    rows = list(Training(replace(plan.setup, batch=lambda step: usual, steps=plan.truth.last + 60)).steps())
    assert shown(plan.truth, rows) is None


# -- facts that only a step guard has


def guarded(plan, tmp_path, **changes):
    """The verdict on the log of a run under a step guard, and the log's lines."""
    log = tmp_path / "run.jsonl"
    monitor = torchnan.Monitor(log, live=False)
    GuardedTraining(replace(plan.setup, **changes), monitor).run()
    monitor.close()
    return diagnose(read(log)).verdicts[0], [json.loads(line) for line in log.read_text().splitlines()]


def test_the_replay_names_the_operation_of_a_zero_by_zero(tmp_path):
    plan = own_mean_plan()
    verdict, lines = guarded(plan, tmp_path)
    [origin] = [line["finding"] for line in lines if "finding" in line]
    assert origin["op"] == "aten::div"
    assert (verdict.kind, verdict.cause, verdict.first_step) == ("nonfinite", "zero_by_zero", plan.truth.first + 1)
    assert verdict.confidence == "certain"


def own_mean_plan():
    plans = (numeric_failures.empty_batch(Draw("empty_batch", seed)) for seed in range(20))
    return next(plan for plan in plans if plan.setup.loss.__name__ == "loss")


def test_an_overflow_of_float16_is_finite_in_float32(tmp_path):
    plan = numeric_failures.grown_activations(Draw("grown_activations", 0))
    verdict, lines = guarded(plan, tmp_path)
    assert [line["rerun"]["finite"] for line in lines if "rerun" in line] == [True]
    assert (verdict.kind, verdict.first_step) == ("fp16_overflow", plan.truth.first + 1)
    assert (verdict.cause, verdict.suspects[0].confidence) == ("activation_overflow", "certain")


def test_a_structural_fault_in_float16_is_the_same_in_float32(tmp_path):
    plan = numeric_failures.log_of_zero(Draw("log_of_zero", 0))
    scaler = {"init_scale": 1024.0}
    verdict, lines = guarded(plan, tmp_path, dtype="float16", scaler=scaler)
    assert [line["rerun"]["finite"] for line in lines if "rerun" in line] == [False]
    assert (verdict.kind, verdict.cause) == ("nonfinite", "log_zero")


# -- the score


def scored(truth, tmp_path, **said):
    """A run with the truth, and a verdict: that of a healthy log, changed."""
    log = tmp_path / "run.csv"
    log.write_text("step,loss\n" + "".join(f"{i},{2 + i % 7 / 50}\n" for i in range(200)))
    verdict = replace(diagnose(read(log)).verdicts[0], **said)
    return Scored(Made("some_run", 7, 0, truth, tmp_path), log, verdict)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"kind": "spike", "cause": "long_tail_batch", "first_step": 50}, ""),
        ({"kind": "persistent_elevation", "cause": "long_tail_batch", "first_step": 50}, "kind"),
        ({"kind": "spike", "cause": "unknown", "first_step": 50}, "cause"),
        ({"kind": "spike", "cause": "long_tail_batch", "first_step": 52}, "first step"),
        ({}, "kind"),
    ],
)
def test_kind_and_cause_and_first_step_must_be_right(said, wrong, tmp_path):
    truth = Truth("spike", ("long_tail_batch", "duplicate_batch"), 49, 51, "")
    assert scored(truth, tmp_path, **said).wrong == wrong


def test_the_tables_count_errors_and_a_miss_names_its_command(tmp_path):
    truth = Truth("spike", ("long_tail_batch",), 49, 51, "a batch of rare tokens")
    right = scored(truth, tmp_path, kind="spike", cause="long_tail_batch", first_step=50)
    missed = scored(truth, tmp_path)
    assert "| spike | long_tail_batch | some_run | 2 | 1 | 1 x healthy (none), wrong: kind |" in confusion(
        [right, missed]
    )
    assert "| truth \\ verdict | healthy | spike |" in kinds([right, missed])
    assert "| spike | 1 | 1 |" in kinds([right, missed])
    assert f"torchnan diagnose {tmp_path / 'run.csv'}" in str(missed)
    assert "a batch of rare tokens" in str(missed)
