"""Every question of the decision tree, answered by a run made for it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.synthetic_runs import training, with_scaler
from torchnan.diagnosis import Thresholds, diagnose
from torchnan.training.diagnosis.reports import page, post_mortem, terminal


def worst(made, thresholds=None, **more):
    run = made.run()
    for name, value in more.items():
        setattr(run, name, value)
    return diagnose(run, thresholds or Thresholds()).verdicts[0]


def answers(made, number):
    return [asked.answer for asked in diagnose(made.run()).walk if asked.number == number]


def finding(step, **facts):
    return [{"step": step, "finding": facts}]


# -- §1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_q1_1_one_loss_that_is_not_finite(value):
    made = training(1)
    made["loss"][400] = value
    verdict = worst(made)
    assert (verdict.kind, verdict.first_step, verdict.last_step, verdict.confidence) == (
        "nonfinite",
        400,
        400,
        "certain",
    )
    assert answers(made, "Q1.1") == ["yes"]


def test_q1_2_in_float32_an_infinite_loss_is_log_of_zero_and_a_nan_zero_by_zero():
    for value, cause in ((np.inf, "log_zero"), (np.nan, "zero_by_zero")):
        made = training(2)
        made["loss"][300:] = value
        verdict = worst(made)
        assert (verdict.kind, verdict.cause, verdict.first_step) == ("nonfinite", cause, 300)
        assert {suspect.cause for suspect in verdict.suspects} == {"log_zero", "zero_by_zero"}


def test_q1_2_in_float16_the_activations_have_overflowed():
    made = with_scaler(training(3), overflow_at=range(400, 600))
    made["loss"][400:] = np.nan
    verdict = worst(made)
    assert (verdict.kind, verdict.cause, verdict.first_step) == ("fp16_overflow", "activation_overflow", 400)
    assert verdict.branch == "Q1.1 -> Q1.2 -> Q3.1 -> Q3.2 -> Q3.3"


def test_q1_2_bfloat16_is_reported_as_float32_with_the_gradient_that_went_first():
    made = training(4, dtype="bfloat16")
    made["grad_norm"][299:], made["loss"][300:] = np.inf, np.nan
    verdict = worst(made)
    assert (verdict.kind, verdict.cause, verdict.first_step) == ("nonfinite", "gradient_overflow", 299)


@pytest.mark.parametrize(
    ("op", "cause"), [("aten::log", "log_zero"), ("aten::div", "zero_by_zero"), ("aten::addmm", "structural")]
)
def test_q1_3_the_replay_names_the_operation(op, cause):
    made = training(5)
    made["loss"][300:] = np.nan
    verdict = worst(
        made, findings=finding(300, op=op, module="head", dtype="float32", phase="forward", hint="x has a 0")
    )
    assert (verdict.kind, verdict.cause, verdict.suspects[0].confidence) == ("nonfinite", cause, "certain")
    assert verdict.evidence["origin"] == f"{op}, in head, float32, forward, because x has a 0"


@pytest.mark.parametrize(
    ("origin", "cause", "says"),
    [
        ("input", "data", "an external tensor, first used by aten::addmm, in a, at train.py:7, float32"),
        ("parameter", "parameter", "parameter a.weight, first read by aten::addmm"),
        ("buffer", "parameter", "buffer a.weight, first read by aten::addmm"),
        ("uninit", "uninitialised", "memory from aten::addmm that nothing has written"),
    ],
)
def test_q1_3_a_value_that_no_operation_made_is_named_as_such(origin, cause, says):
    made = training(5)
    made["loss"][300:] = np.nan
    found = {"origin": origin, "op": "aten::addmm", "module": "a", "name": "a.weight", "dtype": "float32"}
    verdict = worst(made, findings=finding(300, **found, file="train.py", line=7, hint="row 3 of 16 is bad"))
    assert (verdict.kind, verdict.cause, verdict.suspects[0].confidence) == ("nonfinite", cause, "certain")
    assert says in verdict.suspects[0].evidence
    assert verdict.evidence["place"] == "train.py:7"
    assert "structural" not in verdict.remedy


def test_a_constant_that_the_program_wrote_is_called_that():
    made = training(5)
    made["loss"][300:] = np.nan
    verdict = worst(made, findings=finding(300, origin="input", op="aten::fill_", constant=True))
    assert "a constant, written by aten::fill_" in verdict.suspects[0].evidence


def test_q1_3_an_operation_without_a_hint_only_suggests_its_cause():
    made = training(5)
    made["loss"][300:] = np.nan
    verdict = worst(made, findings=finding(300, op="aten::div", file="norm.py", line=3))
    assert (verdict.cause, verdict.suspects[0].confidence) == ("zero_by_zero", "likely")
    assert "masked" not in verdict.remedy + verdict.check
    assert "Print the divisor at norm.py:3 in step 300." in verdict.check


def test_q1_3_several_causes_are_several_verdicts():
    made = training(5)
    made["loss"][[100, 200, 204, 300]] = np.nan
    found = [
        *finding(100, origin="op", op="aten::div", file="train.py", line=7, hint="other holds zeros"),
        *finding(200, origin="input", op="aten::addmm", file="train.py", line=9),
        *finding(204, origin="op", op="aten::div", file="train.py", line=7, hint="other holds zeros"),
    ]
    run = made.run()
    run.findings = found
    verdicts = diagnose(run).verdicts
    assert [(v.cause, v.first_step, v.evidence["nonfinite_steps"]) for v in verdicts] == [
        ("zero_by_zero", 100, 2),
        ("data", 200, 1),
        ("zero_by_zero", 300, 1),
    ]
    assert verdicts[2].suspects[0].confidence == "possible"  # of that step the log has no finding


def test_q1_4_where_there_is_no_finding_the_next_step_is_to_get_one():
    made = training(5)
    made["loss"][300:] = np.nan
    verdict = worst(made)
    assert "TORCHNAN=raise" in verdict.check
    shown = terminal.text(made.run(), diagnose(made.run()))
    assert "NONFINITE, steps 300 to 599: certain, its cause possible" in shown
    assert shown.startswith("torchnan: nonfinite from step 300 on, possibly zero by zero\n")


def test_q1_3_file_and_line_are_in_every_report():
    made = training(5)
    made["loss"][300:] = np.nan
    run = made.run()
    run.findings = finding(300, origin="op", op="aten::log", file="/src/train.py", line=7, hint="self holds zeros")
    found = diagnose(run)
    for text in (terminal.text(run, found), page.html(run, found, Thresholds()), post_mortem.markdown(run, found)):
        assert "/src/train.py:7" in text


def test_q1_4_a_loss_that_explodes_after_a_jump_of_the_rate_is_the_schedules_fault():
    made = training(6)
    made["lr"][300:] *= 100
    made["loss"][301:310] = 10.0 ** np.arange(1, 10)
    made["loss"][310:] = np.nan
    verdict = worst(made)
    assert (verdict.kind, verdict.cause) == ("nonfinite", "lr_discontinuity")
    assert "learning rate jumps at step 300" in verdict.suspects[0].evidence


# -- §2


def test_q2_1_a_single_step_above_mean_and_3_sigma_by_more_than_chance():
    made = training(7)
    made.raise_loss(400, 1.0, until=401)
    verdict = worst(made)
    assert (verdict.kind, verdict.first_step, verdict.last_step) == ("spike", 400, 400)
    assert verdict.evidence["above_sigma"] > 3
    assert verdict.evidence["surprise"] > verdict.evidence["surprise_by_chance"]


def test_q2_1_mean_and_sigma_are_those_of_the_100_steps_before():
    made = training(8, curve="converged")
    made.raise_loss(400, 1.0, until=401)
    verdict, window = worst(made), made["loss"][300:400]
    assert verdict.evidence["mean"] == pytest.approx(window.mean())
    assert verdict.evidence["sigma"] == pytest.approx(window.std())


def test_q2_2_recovered_within_50_steps_or_persistent_or_not_known_yet():
    for until, kind, recovered in ((430, "spike", "yes"), (470, "persistent_elevation", "no")):
        made = training(9, curve="converged")
        made.raise_loss(400, 1.0, until=until)
        verdict = worst(made)
        assert (verdict.kind, verdict.first_step, verdict.evidence["recovered"]) == (kind, 400, recovered)
    made = training(9, curve="converged", steps=420)
    made.raise_loss(400, 1.0)
    verdict = worst(made)
    assert (verdict.kind, verdict.evidence["recovered"], verdict.confidence) == ("spike", "not known yet", "possible")


def test_q2_2_a_loss_that_stays_up_by_two_sigma_has_not_come_back():
    made = training(9, curve="converged")
    made.raise_loss(400, 1.0, until=403)
    made.raise_loss(403, 0.1)
    assert worst(made).kind == "persistent_elevation"
    assert worst(made, Thresholds(recovery_sigma=3)).kind == "spike"


def test_q2_3_a_gradient_norm_of_30_times_its_mean_is_a_long_tail_batch():
    made = training(10)
    made.raise_loss(400, 1.0, until=401)
    made["grad_norm"][400] = 40 * made["grad_norm"][300:400].mean()
    verdict = worst(made)
    assert (verdict.cause, verdict.suspects[0].confidence) == ("long_tail_batch", "likely")
    assert "40.0 times its rolling mean" in verdict.suspects[0].evidence
    made["grad_norm"][400] = 4 * made["grad_norm"][300:400].mean()
    assert worst(made).cause == "unknown"


def test_q2_3_a_learning_rate_that_jumps_is_a_schedule_bug():
    made = training(11)
    made["lr"][399] *= 30
    made.raise_loss(400, 1.0, until=410)
    verdict = worst(made)
    assert (verdict.kind, verdict.cause, verdict.first_step) == ("spike", "lr_discontinuity", 400)
    assert "at step 399" in verdict.suspects[0].evidence


def test_q2_3_a_batch_that_came_a_few_steps_before_is_a_fault_of_the_loader():
    made = training(12)
    made.raise_loss(400, 1.0, until=401)
    made.digests[400] = made.digests[380]
    verdict = worst(made)
    assert (verdict.kind, verdict.cause) == ("spike", "duplicate_batch")
    assert "the batch of step 400 is that of step 380" in verdict.suspects[0].evidence


def test_q2_3_how_recent_a_duplicate_is_can_be_set():
    made = training(12)
    made.raise_loss(400, 1.0, until=401)
    made.digests[400] = made.digests[250]
    assert worst(made).cause == "unknown"
    assert worst(made, Thresholds(duplicate_steps=150)).cause == "duplicate_batch"


def test_q2_3_in_a_run_of_many_epochs_a_repeated_batch_says_nothing():
    made = training(13)
    made.digests = [f"{i % 40:016x}" for i in range(600)]
    assert worst(made).kind == "healthy"
    made.raise_loss(400, 1.0, until=401)
    assert worst(made).cause == "unknown"


def test_q2_3_several_causes_are_ranked():
    made = training(14)
    made.raise_loss(400, 1.0, until=402)
    made["lr"][400] *= 30
    made.digests[400] = made.digests[390]
    made["grad_norm"][400] *= 500
    assert [s.cause for s in worst(made).suspects] == ["lr_discontinuity", "duplicate_batch", "long_tail_batch"]


def test_q2_4_a_persistent_elevation_is_reloaded_from_before_it():
    made = training(15)
    made["loss"][400:] += 1.5 * np.exp(-np.arange(200) / 150) * np.minimum(1, (np.arange(200) + 1) / 6)
    verdict = worst(made)
    assert (verdict.kind, verdict.cause) == ("persistent_elevation", "corrupted_moments")
    assert abs(verdict.first_step - 400) <= 1
    assert "Reload the last checkpoint before step 40" in verdict.remedy
    assert "lower the clip threshold to 0.5" in verdict.remedy


def test_q2_4_data_that_change_show_in_full_at_once():
    made = training(16, curve="converged")
    made.raise_loss(400, 1.0)
    assert (worst(made).kind, worst(made).cause) == ("persistent_elevation", "data_changed")


# -- §3


def test_q3_1_gradients_that_overflow_at_scales_that_had_been_fine():
    made = with_scaler(training(17), overflow_at=[400, 401, 402, 403])
    verdict = worst(made)
    assert (verdict.kind, verdict.cause, verdict.first_step) == ("fp16_overflow", "gradient_overflow", 400)


def test_q3_1_a_scaler_that_searches_is_healthy():
    made = with_scaler(training(18), scale=2.0**24, growth=100, overflow_at=[0, 1, 2, 3, 4, 5, 6, 7, 110, 215, 320])
    assert worst(made).kind == "healthy"
    assert answers(made, "Q3.3") == ["no"]


def test_q3_1_in_float32_an_infinite_gradient_is_reported_as_such():
    made = training(19)
    made["grad_norm"][400] = np.inf
    verdict = worst(made)
    assert (verdict.kind, verdict.cause, verdict.first_step) == ("nonfinite", "gradient_overflow", 400)


def test_q3_2_a_scale_that_does_not_answer_an_overflow_is_constant():
    made = with_scaler(training(20))
    made.columns["loss_scale"][:] = 1024.0
    assert worst(made).kind == "healthy"
    made["grad_norm"][[300, 350]] = np.inf
    verdict = worst(made)
    assert (verdict.kind, verdict.cause, verdict.first_step) == ("loss_scale_constant", "scaler_off", 300)


def test_q3_2_a_scale_below_1_has_collapsed():
    made = with_scaler(training(21), overflow_at=range(300, 330))
    verdict = worst(made)
    assert (verdict.kind, verdict.first_step) == ("loss_scale_collapse", 300)
    assert "halve the learning rate" in verdict.remedy


def test_q3_2_a_scale_that_halves_below_1_has_collapsed_with_any_norms():
    made = with_scaler(training(21), overflow_at=range(300, 330))
    made["grad_norm"][:] = 1.0
    assert (worst(made).kind, worst(made).first_step) == ("loss_scale_collapse", 300)
    started_below = with_scaler(training(21))
    started_below["grad_norm"][:] = 1.0
    started_below.columns["loss_scale"][:] = 2.0 ** -np.minimum(np.arange(600) // 10, 40) / 2
    assert worst(started_below).kind == "loss_scale_collapse"


def test_q3_3_the_signature_the_gradient_goes_first_in_float16_and_the_loss_in_float32():
    half = with_scaler(training(22), overflow_at=range(298, 600))
    half["loss"][301:] = np.nan
    assert (worst(half).kind, worst(half).cause, worst(half).first_step) == ("fp16_overflow", "gradient_overflow", 298)
    full = training(22)
    full["loss"][301:] = np.nan
    assert (worst(full).kind, worst(full).first_step) == ("nonfinite", 301)


@pytest.mark.parametrize(("finite", "kind"), [(True, "fp16_overflow"), (False, "nonfinite")])
def test_q3_3_the_rerun_in_float32_distinguishes_overflow_from_structure(finite, kind):
    made = with_scaler(training(23))
    made["loss"][300:] = np.nan
    verdict = worst(made, reruns=[{"step": 300, "dtype": "float32", "finite": finite}])
    assert verdict.kind == kind
    assert verdict.cause == ("activation_overflow" if finite else "structural")


def test_q3_4_the_remedies_are_a_scaler_a_lower_rate_and_bfloat16():
    overflow = worst(with_scaler(training(24), overflow_at=[400, 401, 402])).remedy
    collapse = worst(with_scaler(training(24), overflow_at=range(300, 330))).remedy
    assert "torch.amp.GradScaler" in overflow
    assert "bfloat16" in overflow
    assert "bfloat16" in collapse


# -- §4


def rising(seed, by=1.0, start=300, **given):
    made = training(seed, **given)
    made["loss"][start:] += by * np.arange(600 - start) / 300
    return made


def test_q4_1_a_loss_that_goes_up_for_200_steps():
    verdict = worst(rising(25).drop("grad_norm"))
    assert (verdict.kind, verdict.cause) == ("silent_divergence", "unknown")
    assert abs(verdict.first_step - 300) <= 60
    short = training(25, steps=600)
    short["loss"][500:] += np.arange(100) / 300
    assert worst(short).kind == "healthy"


def test_q4_2_with_a_learning_rate_that_goes_up_it_is_the_schedule():
    made = rising(26)
    made["lr"][:] = 1e-5 * (made.step + 1)
    verdict = worst(made)
    assert (verdict.kind, verdict.cause) == ("silent_divergence", "lr_increasing")
    assert verdict.branch.endswith("Q4.1 -> Q4.2")
    assert "inverse cosine" in verdict.remedy


def test_q4_2_also_where_training_comes_apart_at_once():
    made = training(26, curve="converged")
    made["lr"][:] = 1e-5 * (made.step + 1)
    made.raise_loss(350, 1.0)
    assert (worst(made).kind, worst(made).cause) == ("silent_divergence", "lr_increasing")


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_q4_3_a_weight_norm_that_changes_twofold_is_the_decay(factor):
    made = rising(27)
    made["weight_norm"][300:] *= factor ** (np.arange(300) / 200)
    verdict = worst(made)
    assert (verdict.kind, verdict.cause) == ("silent_divergence", "weight_norm")
    assert "weight decay by a factor of 2" in verdict.remedy


def test_q4_4_a_gradient_norm_that_goes_up_is_a_landscape_that_gets_harder():
    made = rising(28)
    made["grad_norm"][300:] *= np.exp(np.arange(300) / 150)
    verdict = worst(made)
    assert (verdict.kind, verdict.cause) == ("silent_divergence", "gradient_trend")
    assert "Halve the learning rate" in verdict.remedy


def test_q4_4_without_any_of_these_it_is_a_plateau():
    made = rising(29)
    verdict = worst(made)
    assert (verdict.kind, verdict.cause) == ("plateau", "converged")
    assert "evaluation" in verdict.remedy


def test_a_healthy_run_is_a_verdict_too():
    found = diagnose(training(30).run())
    assert [verdict.kind for verdict in found.verdicts] == ["healthy"]
    assert [asked.number for asked in found.walk] == ["Q1.1", "Q2.1", "Q3.1", "Q4.1", "Q5.1", "Q5.2"]


def test_every_threshold_of_the_quick_reference_is_an_option():
    made = training(31, curve="converged")
    made.raise_loss(400, 1.0, until=430)
    assert worst(made, Thresholds(spike_sigma=30)).kind == "healthy"
    assert worst(made, Thresholds(recovery_steps=20)).kind == "persistent_elevation"
    made["grad_norm"][400] = 10 * made["grad_norm"][300:400].mean()
    assert worst(made, Thresholds(grad_factor=8)).cause == "long_tail_batch"
    up = rising(31)
    up["weight_norm"][300:] *= 1.5 ** (np.arange(300) / 200)
    assert worst(up, Thresholds(weight_factor=1.3)).cause == "weight_norm"
    assert worst(rising(31, start=480, by=3.0), Thresholds(divergence_steps=100)).kind != "healthy"
