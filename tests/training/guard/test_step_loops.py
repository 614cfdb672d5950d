"""A loop of the program's own around the guard, and a loss scaler inside it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan
from tests.support.captured_output import logged
from tests.support.guarded_steps import NAN, Training, bad_batch, batch_of, step_of
from torchnan.recovery import TrainingStopped

# -- a loop of the program's own


def test_a_loop_of_ones_own():
    training = Training()
    for i, bad in enumerate([False, True, False]):
        batch = bad_batch() if bad else batch_of(i)
        training.optimizer.zero_grad()
        with training.guard.watch(batch):
            loss = step_of(training.model, batch)
            loss.backward()
        ok = training.guard.ok_to_step(loss)
        assert ok is not bad
        if ok:
            training.optimizer.step()
    event = training.guard.events[0]
    assert (event.step, event.cause, event.verdict, event.action) == (2, "data", "persistent", "skip")
    assert training.guard.step_number == 3


def test_accumulation_in_a_loop_of_ones_own():
    training = Training()
    for batch in (batch_of(0), bad_batch()):
        with training.guard.watch(batch):
            (step_of(training.model, batch) / 2).backward()
    assert not training.guard.ok_to_step()
    event = training.guard.events[0]
    assert event.what == "gradient"
    assert event.finding.origin == "input"
    assert event.step == 1


def test_a_loop_that_never_asks_is_warned_of_once():
    """Its batches would pile up, and nothing would be checked."""
    training = Training()
    with logged() as told:
        for seed in range(4):
            with training.guard.watch(batch_of(seed)):
                step_of(training.model, batch_of(seed)).backward()
            training.optimizer.step()
    assert told == [
        "torchnan: the optimizer stepped, but ok_to_step() has not been called, so no step is checked, and all batches "
        "stay in memory. Write `if guard.ok_to_step(loss): optimizer.step()`."
    ]


def test_weights_that_change_after_the_first_question_are_no_sign():
    """A loop may average weights between two micro-batches, say."""
    training = Training()
    with logged() as told:
        for seed in range(4):
            with training.guard.watch(batch_of(seed)):
                loss = step_of(training.model, batch_of(seed))
                loss.backward()
            if seed != 1:
                assert training.guard.ok_to_step(loss)
            training.optimizer.step()
    assert told == []


def test_random_numbers_drawn_between_micro_batches_are_drawn_again():
    """A fault that only these very dropout masks have."""

    def step(model, batch):
        return step_of(model, batch) * (NAN if batch[0].equal(batch_of(2)[0]) else 1)

    training = Training(step)
    drawn = []
    for seed in range(3):
        torch.rand(seed + 1)  # augmentation, say
        with training.guard.watch(batch_of(seed)):
            loss = step_of(training.model, batch_of(seed))
            drawn.append(loss.item())
            (loss * (NAN if seed == 2 else 1)).backward()
    assert not training.guard.ok_to_step()
    assert (training.guard.events[0].verdict, training.guard.events[0].cause) == ("persistent", "operation")
    assert len(set(drawn)) == 3


def test_in_a_custom_loop_a_retry_counts_as_a_skip_of_the_budget():
    training = Training(max_consecutive=2)
    for _ in range(2):
        with training.guard.watch(batch_of(0)):
            loss = step_of(training.model, batch_of(0)) * NAN
            loss.backward()
        assert not training.guard.ok_to_step(loss)  # the replay is finite
        assert training.guard.events[-1].verdict == "transient"
        assert training.guard.events[-1].reason == "the step cannot be run again as it was"
    with training.guard.watch(batch_of(0)):
        loss = step_of(training.model, batch_of(0)) * NAN
        loss.backward()
    with pytest.raises(TrainingStopped, match="2 bad steps in a row"):
        training.guard.ok_to_step(loss)


def test_a_step_that_was_begun_can_be_given_up():
    training = Training()
    with training.guard.watch(batch_of(0)):
        pass
    assert training.guard.in_step
    training.guard.abandon()
    assert not training.guard.in_step


def test_a_replay_that_fails_does_not_end_the_training():
    runs = iter([True])

    def step(model, batch):
        if not next(runs, False):
            raise OSError("the stream has been read")
        return step_of(model, batch) * NAN

    event = Training(step).guard.step(batch_of(0)).event
    assert event.action == "skip"
    assert event.notes == ["not replayed: it raised OSError when run again: the stream has been read"]


# -- loss scaling


def test_a_retry_is_unscaled_once():
    def trained(**options):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        faults = iter([True])
        guard = torchnan.StepGuard(
            model, optimizer, lambda m, x: m(x).square().mean() * (NAN if next(faults, False) else 1), **options
        )
        result = guard.step(torch.ones(2, 4))
        assert result.applied
        assert guard.events[0].action == "retry"
        return result.norm, model.state_dict()

    norm, weights = trained()
    scaled_norm, scaled_weights = trained(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert norm == pytest.approx(scaled_norm)
    torch.testing.assert_close(weights, scaled_weights)


def test_a_scaler_in_search_of_its_scale_is_left_alone():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    step = lambda model, x: (model(x) * 100).square().mean()  # noqa: E731
    guard = torchnan.StepGuard(model, optimizer, step, scaler=scaler)
    applied = [guard.step(torch.randn(8, 4)).applied for _ in range(40)]
    assert not applied[0]
    assert applied[-1]
    assert guard.events == []
    assert scaler.get_scale() < 2.0**127


def test_a_scaler_that_finds_none_is_a_bad_step():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = torchnan.StepGuard(
        model,
        optimizer,
        lambda model, x: (model(x) - model(x).detach()).abs().sqrt().mean(),
        scaler=torch.amp.GradScaler("cpu", init_scale=4.0),
        max_scaler_skips=3,
    )
    results = [guard.step(torch.randn(8, 4)) for _ in range(4)]
    assert [result.event is None for result in results] == [True, True, True, False]
    assert results[3].event.what == "scaler"
    assert results[3].event.finding.phase == "backward"
    assert guard.step(torch.randn(8, 4)).event is not None
