"""Noise leads to no verdict, whatever its distribution; a planted failure is found, at its step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.synthetic_runs import CURVES, NOISES, SCHEDULES, training, with_scaler
from torchnan.diagnosis import Thresholds, diagnose
from torchnan.training.diagnosis.decision_tree import problems
from torchnan.training.diagnosis.extreme_value import max_quantile, outlier_threshold


def healthy(seed, noise, curve):
    rng = np.random.default_rng([seed, 1])
    made = training(
        [seed, len(noise), len(curve)],
        steps=int(rng.choice([150, 300, 600, 1500])),
        noise=noise,
        curve=curve,
        schedule=rng.choice(list(SCHEDULES)),
        size=float(rng.choice([0.01, 0.05, 0.2])),
    )
    return with_scaler(made, overflow_at=[0, 1, 120]) if seed % 3 == 0 else made


def false_alarms(seeds):
    found = []
    for seed, noise, curve in itertools.product(seeds, NOISES, CURVES):
        verdict = diagnose(healthy(seed, noise, curve).run()).verdicts[0]
        if verdict.kind != "healthy":
            found.append((seed, noise, curve, verdict.kind, verdict.cause, verdict.first_step, verdict.evidence))
    return found


def test_no_false_alarm_in_200_healthy_runs():
    assert false_alarms(range(4)) == []


@pytest.mark.parametrize("plant", ["nothing", "spike", "rise", "overflow", "nan"])
def test_a_running_training_gets_the_bad_verdicts_of_a_whole_one(plant):
    for seed, noise in itertools.product(range(6), NOISES):
        made = training([seed, len(noise)], steps=900, noise=noise, curve="converged")
        if plant == "spike":
            made.raise_loss(500, 4.0, until=502)
        if plant == "rise":
            made["loss"][600:] *= np.linspace(1, 3, 300)
        if plant == "overflow":
            made = with_scaler(made, overflow_at=[600, 601, 602])
        if plant == "nan":
            made["loss"][700:] = np.nan
        run = made.run()
        bad = [verdict for verdict in diagnose(run, is_whole=False).verdicts if verdict.is_bad]
        assert problems(run, Thresholds()).verdicts == bad
        assert plant == "nothing" or bad


@pytest.mark.slow
def test_hardly_a_false_alarm_in_5000_healthy_runs():
    found = false_alarms(range(4, 104))
    assert len(found) <= 50, found


def test_the_3_sigma_rule_taken_literally_would_cry_wolf_in_most_of_them():
    cries = 0
    for seed in range(20):
        loss = training(seed, steps=1500, curve="converged")["loss"]
        windows = np.lib.stride_tricks.sliding_window_view(loss, 100)[:-1]
        cries += bool((loss[100:] > windows.mean(axis=1) + 3 * windows.std(axis=1)).any())
        assert diagnose(training(seed, steps=1500, curve="converged").run()).verdicts[0].kind == "healthy"
    assert cries >= 15


def spike(made, rng, at):
    made.raise_loss(at, rng.uniform(20, 60) * made.notes["size"], until=at + rng.integers(1, 4))


def jump_of_the_rate(made, rng, at):
    made["lr"][at - 1 : at + 2] *= rng.uniform(5, 100)
    made["loss"][at : at + 20] += rng.uniform(25, 60) * made.notes["size"] * np.exp(-np.arange(20) / 8)


def elevation(made, rng, at):
    after = np.arange(len(made.step) - at)
    made["loss"][at:] += rng.uniform(15, 60) * made.notes["size"] * np.minimum(1, (after + 1) / rng.integers(1, 8))


def divergence(made, rng, at):
    after = np.arange(len(made.step) - at)
    made["loss"][at:] += (
        3 / 700 + rng.uniform(15, 60) * made.notes["size"] / len(after)
    ) * after  # whatever it would have fallen
    made["grad_norm"][at:] *= np.exp(rng.uniform(1, 3) * after / len(after))


FAILURES = {
    spike: ("spike", 0, 0),
    jump_of_the_rate: ("spike", 0, 3),
    elevation: ("persistent_elevation", 0, 5),
    divergence: ("silent_divergence", 100, 150),
}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_planted_failure_is_found_at_its_step(failure):
    kind, early, late = FAILURES[failure]
    missed, runs = [], list(itertools.product(range(4), NOISES, CURVES))
    for seed, noise, curve in runs:
        rng = np.random.default_rng([seed, len(noise), len(curve)])
        made = training(seed + 100, steps=700, noise=noise, curve=curve)
        made.notes["size"] = 0.05
        at = int(rng.integers(250, 350))
        failure(made, rng, at)
        verdict = diagnose(made.run()).verdicts[0]
        if verdict.kind != kind or not at - early <= verdict.first_step <= at + late:
            missed.append((seed, noise, curve, at, verdict.kind, verdict.cause, verdict.first_step))
    assert len(missed) <= 0.05 * len(runs), missed


def test_an_earlier_spike_does_not_hide_a_later_one():
    made = training(40)
    made.raise_loss(300, 50.0, until=301)
    made.raise_loss(330, 1.0, until=331)
    made.raise_loss(360, 1.0, until=361)
    assert sorted(v.first_step for v in diagnose(made.run()).verdicts) == [300, 330, 360]


def test_a_value_of_1e300_leaves_the_rest_of_the_run_as_it_was():
    made = training(41)
    made["loss"][200] = 1e300
    made.raise_loss(450, 1.0, until=451)
    assert sorted(v.first_step for v in diagnose(made.run()).verdicts) == [200, 450]


def test_less_is_needed_where_the_learning_rate_jumps():
    made = training(42, curve="converged", size=0.05)
    made.raise_loss(400, 0.33, until=401)
    assert diagnose(made.run()).verdicts[0].kind == "healthy"
    made["lr"][399] *= 30
    assert diagnose(made.run()).verdicts[0].cause == "lr_discontinuity"


@pytest.mark.parametrize("every", [2, 5, 10])
def test_rows_of_every_few_steps_are_checked_in_steps(every):
    made = training(43, steps=1000 * every, curve="converged")
    at = 600 * every
    made.raise_loss(at, 1.0, until=at + 1)
    verdict = diagnose(made.run(every)).verdicts[0]
    assert (verdict.kind, verdict.first_step) == ("spike", at)
    made.raise_loss(at, 1.0, until=at + 60 + every)
    assert diagnose(made.run(every)).verdicts[0].kind == "persistent_elevation"


def test_few_steps_are_too_few_to_judge():
    for steps in (1, 2, 5, 20, 40):
        found = diagnose(training(44, steps=steps).run())
        assert found.verdicts[0].kind == ("healthy" if steps > 20 else "undetermined")
    assert "rows are too few" in next(asked for asked in found.walk if asked.number == "Q2.1").evidence or steps > 20


def test_missing_rows_and_values_do_no_harm():
    made = training(45)
    made.raise_loss(400, 1.0, until=401)
    keep = made.rng.random(600) > 0.2
    keep[400] = True
    run = made.run()
    run.columns["loss"].given[~keep] = False
    run.columns["grad_norm"].given[:300] = False
    verdict = diagnose(run).verdicts[0]
    assert (verdict.kind, verdict.first_step) == ("spike", 400)


def test_the_tail_is_continued_to_the_chance_that_is_allowed():
    rng = np.random.default_rng(0)
    exponential = rng.exponential(size=20_000)
    level = max_quantile(exponential, 1000, 0.01)
    assert np.exp(-level) * 1000 == pytest.approx(0.01, rel=0.95)  # the tail of an exponential distribution is known
    assert max_quantile(exponential, 1000, 0.001) > level
    assert max_quantile(rng.standard_t(3, 20_000), 1000, 0.01) > 2 * level
    assert max_quantile(np.ones(5), 1000, 0.01) == np.inf


def test_several_peaks_do_not_hide_each_other():
    ordinary = np.random.default_rng(1).normal(size=1000)
    assert outlier_threshold(np.array([3.1, 30.0, 31.0, 32.0, 33.0]), ordinary, 1000, 0.001) < 30


def test_spikes_that_come_again_and_again_are_all_reported():
    made = training(48, steps=6000, curve="converged")
    made["loss"][500::250] += 1.0
    assert sorted(v.first_step for v in diagnose(made.run()).verdicts) == list(range(500, 6000, 250))


def test_the_run_is_left_as_it_was():
    run = with_scaler(training(46), overflow_at=[400]).run()
    before = [column.values.copy() for column in run.columns.values()]
    diagnose(run, Thresholds())
    assert all(np.array_equal(a, b.values, equal_nan=True) for a, b in zip(before, run.columns.values(), strict=True))


def test_a_run_without_rows_is_refused():
    with pytest.raises(ValueError, match=r"there is nothing to diagnose: run\.csv has no rows"):
        run = training(47).run()
        run.step, run.source = run.step[:0], "run.csv"
        diagnose(run)
