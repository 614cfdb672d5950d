"""Section 5 of the tree: a training that learns nothing, that has no gradients, or that learns by heart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchnan.diagnosis import diagnose, of_columns

STEPS = 300


def falling(low=1.0, steps=STEPS):
    rng = np.random.default_rng(1)
    return low + 2 * np.exp(-np.arange(steps) / 60) + rng.normal(size=steps) * 0.01


def flat(level, steps=STEPS, noise=0.003):
    return level + np.random.default_rng(2).normal(size=steps) * noise


def verdict_of(**columns):
    return diagnose(of_columns(range(len(columns["loss"])), columns)).verdicts[0]


@pytest.mark.parametrize("classes", [2, 10, 1000, 50_257])
def test_a_loss_that_stays_at_chance_is_not_learning(classes):
    verdict = verdict_of(loss=flat(math.log(classes)), grad_norm=flat(1.0))
    assert (verdict.kind, verdict.cause, verdict.certainty) == ("not_learning", "chance_level", "likely")
    assert f"which is ln({classes:,}): that of guessing among {classes:,}" in verdict.suspects[0].evidence


def test_a_loss_that_comes_down_from_chance_learns():
    assert verdict_of(loss=falling(1.0) + math.log(10) - 3).kind == "healthy"


def test_a_flat_loss_at_another_level_may_have_converged():
    assert verdict_of(loss=flat(1.5)).kind == "healthy"


def test_a_learning_rate_of_0_is_the_cause():
    verdict = verdict_of(loss=flat(2.5), lr=np.zeros(STEPS))
    assert (verdict.kind, verdict.cause, verdict.certainty) == ("not_learning", "lr_zero", "certain")
    assert verdict.suspects[0].evidence == "the learning rate is 0 in 300 of 300 rows"
    assert "the learning rate is 0" in verdict.remedy


def test_a_learning_rate_that_is_printed_as_0_while_the_loss_falls_is_not():
    assert verdict_of(loss=falling(), lr=np.zeros(STEPS)).kind == "healthy"


def test_one_and_the_same_loss_is_not_learning():
    verdict = verdict_of(loss=np.full(STEPS, 4.25))
    assert (verdict.kind, verdict.cause) == ("not_learning", "unknown")
    assert verdict.suspects[0].evidence == "the loss is 4.25 in each of 300 rows"


def test_gradients_that_are_0_to_the_end_are_dead():
    norm = np.where(np.arange(STEPS) < 200, 1.0, 0.0)
    verdict = verdict_of(loss=falling(), grad_norm=norm)
    assert (verdict.kind, verdict.first_step, verdict.certainty) == ("dead_gradients", 200, "certain")
    assert verdict.suspects[0].evidence == "the gradient norm is 0 in the last 100 of 300 rows"


def test_an_evaluation_loss_that_rises_while_that_of_the_training_falls_is_overfitting():
    steps = np.arange(STEPS)
    evaluation = np.where(steps % 10 == 0, 1.5 + np.abs(steps - 100) / 200, np.nan)
    columns = {"loss": falling(), "eval_loss": [None if np.isnan(x) else x for x in evaluation]}
    verdict = verdict_of(**columns)
    assert (verdict.kind, verdict.first_step, verdict.cause) == ("overfitting", 100, "memorised")
    assert verdict.evidence["eval_loss_low"] == pytest.approx(1.5, abs=0.05)


def test_an_evaluation_loss_that_falls_with_the_training_is_healthy():
    noise = np.random.default_rng(3).normal(size=STEPS) * 0.02
    assert verdict_of(loss=falling(), eval_loss=falling() + 0.1 + noise).kind == "healthy"


def test_the_last_rows_of_a_running_training_are_not_checked_for_learning():
    run = of_columns(range(STEPS), {"loss": flat(math.log(10))})
    assert diagnose(run, is_whole=False).verdicts[0].kind == "healthy"
