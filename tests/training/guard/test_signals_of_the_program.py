"""What a signal handler of the program raises reaches the program, whatever the step guard is doing meanwhile."""

from __future__ import annotations

import logging
import random
import signal

import numpy
import pytest
import torch

import torchnan
from tests.support.guarded_steps import Net, Training, assert_same, bad_batch, batch_of, step_of


class TimeLimit(Exception):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def _handler():
    def raise_limit(number, frame):
        raise TimeLimit

    before = signal.signal(signal.SIGUSR1, raise_limit)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt(*given):
    signal.raise_signal(signal.SIGUSR1)


class InterruptedAt:
    """A step function that is interrupted in one of its runs."""

    def __init__(self, call):
        self.calls, self.interrupted_at = 0, call

    def __call__(self, model, batch):
        self.calls += 1
        if self.calls == self.interrupted_at:
            interrupt()
        return step_of(model, batch)


class Stateful:
    state_dict = load_state_dict = interrupt


class Emitting(logging.Handler):
    emit = interrupt


def in_the_first_replay(folder):
    Training(InterruptedAt(2)).guard.step(bad_batch())


def in_the_second_replay(folder):
    Training(InterruptedAt(3)).guard.step(bad_batch())


def while_the_operation_is_recorded(folder):
    Training(InterruptedAt(4), captures=folder).guard.step(bad_batch())


def in_a_remedy(folder):
    Training(InterruptedAt(5), try_remedies=True).guard.step(bad_batch())


def in_a_capture(folder):
    class Interrupted(Net):
        def get_extra_state(self):
            return None

        def named_modules(self, *args, **options):
            if step.calls == 4:
                interrupt()
            return super().named_modules(*args, **options)

    step = InterruptedAt(0)
    Training(step, Interrupted(), captures=folder).guard.step(bad_batch())


def in_a_snapshot(folder):
    Training(snapshot_every=1, also=[Stateful()]).guard.step(batch_of(0))


def in_a_rollback(folder):
    training = Training(snapshot_every=1, save=lambda step: None, load=interrupt, health=False)
    training.guard.step(batch_of(0))
    training.model.a.weight.data.fill_(float("nan"))
    training.guard.step(batch_of(1))


def in_a_handler_of_logs(folder):
    handler = Emitting()
    logger = logging.getLogger("torchnan")
    logger.addHandler(handler)
    try:
        Training().guard.step(bad_batch())
    finally:
        logger.removeHandler(handler)


def in_try_remedies(folder):
    training = Training()
    step = InterruptedAt(2)
    torchnan.try_remedies(lambda: step(training.model, bad_batch()).backward(), model=training.model)


PLACES = (
    in_the_first_replay,
    in_the_second_replay,
    while_the_operation_is_recorded,
    in_a_remedy,
    in_a_capture,
    in_a_snapshot,
    in_a_rollback,
    in_a_handler_of_logs,
    in_try_remedies,
)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_what_a_handler_raises_reaches_the_program(place, tmp_path):
    with pytest.raises(TimeLimit):
        place(tmp_path)


@pytest.mark.parametrize("call", [2, 3])
def test_an_interrupted_replay_leaves_the_training_as_it_was(call):
    """With the random states that the step has left, as if it had been replayed not at all."""

    def begun(**options):
        random.seed(0)
        numpy.random.seed(0)
        interrupted = InterruptedAt(call)
        training = Training(
            lambda model, batch: interrupted(model, batch) + random.random() * numpy.random.rand(), **options
        )
        return training, training.state()

    def drawn():
        return torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()

    training, _ = begun(replay=False)
    training.guard.step(bad_batch())
    expected = drawn()
    training, before = begun()
    with pytest.raises(TimeLimit):
        training.guard.step(bad_batch())
    assert drawn() == expected
    assert_same(training.state(), before)
    assert training.guard.step(batch_of(1)).applied
