"""Promise 10, for the step guard: a failure inside it is reported once and counted, and the policy is followed."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import warnings

import pytest
import torch

import torchnan
from tests.support.guarded_steps import NAN, Net, Training, assert_same, bad_batch, batch_of, step_of
from torchnan.recovery import TrainingStopped

pytestmark = pytest.mark.guarantee(10)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Many small trainings would wait for their threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def said():
    """The guard's log messages about failures."""
    kept = []

    class Keep(logging.Handler):
        def emit(self, record):
            if "later failures are only counted" in record.getMessage():
                kept.append(record.getMessage())

    handler = Keep()
    logging.getLogger("torchnan").addHandler(handler)
    yield kept
    logging.getLogger("torchnan").removeHandler(handler)


def run(training, steps=6, bad=(2, 4)):
    results = [training.guard.step(bad_batch(i) if i in bad else batch_of(i)) for i in range(steps)]
    assert [result.applied for result in results] == [i not in bad for i in range(steps)]
    return results


@pytest.fixture(scope="module")
def expected():
    training = Training(snapshot_every=2)
    run(training)
    return training.state()


class Failing:
    """Raises the nth time, or from then on."""

    def __init__(self, error, nth=1, for_ever=True):
        self.error, self.nth, self.for_ever = error, nth, for_ever
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls == self.nth or (self.for_ever and self.calls > self.nth):
            raise self.error


# -- captures


class WithoutSharedNames(Net):
    """A capture asks for the names of all shared tensors."""

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        if not remove_duplicate:
            raise AttributeError("no shared names")
        return super().named_parameters(prefix, recurse)


def test_a_capture_that_fails(expected, said, tmp_path):
    """Its folder is gone. Fails when ``Captures.keep`` does not contain its writes."""
    training = Training(snapshot_every=2, captures=tmp_path / "captures")
    shutil.rmtree(tmp_path / "captures")
    (tmp_path / "captures").write_text("a file in its place")
    results = run(training)
    assert_same(training.state(), expected)
    notes = [result.event.notes for result in results if result.event]
    assert [len(note) for note in notes] == [1, 1]
    assert all(note[0].startswith("not captured: ") for note in notes)
    assert training.guard.failures == {"writing a capture": 2}
    assert len(said) == 1


def test_a_capture_of_a_model_that_cannot_be_written(said, tmp_path):
    trainings = []
    for make_model, options in ((Net, {}), (WithoutSharedNames, {"captures": tmp_path})):
        torch.manual_seed(0)
        trainings.append(Training(model=make_model(), snapshot_every=2, **options))
        results = run(trainings[-1])
    plain, training = trainings
    assert_same(training.state(), plain.state())
    assert all("no shared names" in result.event.notes[0] for result in results if result.event)
    assert training.guard.failures == {"writing a capture": 2}
    assert len(said) == 1
    assert os.listdir(tmp_path) == []


# -- snapshots


ERRORS = (
    OSError(errno.ENOSPC, "No space left on device"),
    RuntimeError("file write failed"),
    MemoryError(),
    KeyError(3),
)
FEW = [ERRORS[0], *(pytest.param(error, marks=pytest.mark.slow) for error in ERRORS[1:3]), ERRORS[3]]


@pytest.mark.breadth(1)
@pytest.mark.parametrize("error", FEW, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("for_ever", [False, True])
def test_a_snapshot_that_fails(error, for_ever, expected, said, tmp_path):
    """Snapshots by a function of the program: torch.save() raises RuntimeError for a full disk. Fails when
    ``Rollback.take`` contains only OSError."""
    save = Failing(error, nth=2, for_ever=for_ever)
    log = tmp_path / "log.jsonl"
    training = Training(snapshot_every=2, save=save, load=lambda step: None, log=log)
    run(training)
    assert_same(training.state(), expected)
    failures = training.guard.failures["taking a snapshot"]
    assert failures == (save.calls - 1 if for_ever else 1)
    assert len(said) == 1
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds.count("no_snapshot") == failures


def test_a_snapshot_that_cannot_be_gone_back_to_makes_way_for_an_older_one(said, tmp_path):
    """Fails when ``Rollback.restore`` tries one only."""
    training = Training(snapshot_every=1, snapshots=3, snapshot_folder=tmp_path)
    for i in range(3):
        training.guard.step(batch_of(i))
    newest = sorted(tmp_path.iterdir())[-1]
    (newest / "snapshot.safetensors").write_bytes(b"damaged")
    training.model.a.weight.data.fill_(NAN)
    event = training.guard.step(batch_of(3)).event
    assert (event.action, event.snapshot) == ("rollback", 2)
    assert training.guard.failures == {"restoring a snapshot": 1}
    assert len(said) == 1
    assert training.guard.step(batch_of(2)).applied


def test_no_snapshot_that_can_be_gone_back_to_stops_the_training_and_says_so(said, tmp_path):
    training = Training(snapshot_every=1, snapshots=2, snapshot_folder=tmp_path / "kept", log=tmp_path / "log.jsonl")
    for i in range(3):
        training.guard.step(batch_of(i))
    for snapshot in (tmp_path / "kept").iterdir():
        (snapshot / "contents.json").write_text("{")
    training.model.a.weight.data.fill_(NAN)
    with pytest.raises(TrainingStopped, match="no snapshot can be restored") as stopped:
        training.guard.step(batch_of(3))
    assert (stopped.value.reason, stopped.value.exit_code) == ("model", 82)
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["cause"] == "model"
    assert training.guard.failures == {"restoring a snapshot": 2}
    assert len(said) == 1


# -- the callback


@pytest.mark.breadth(1)
@pytest.mark.parametrize("error", FEW, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("for_ever", [False, True])
def test_a_callback_that_raises(error, for_ever, expected, said):
    """The policy decides. Fails when ``Wish.about`` does not contain the callback."""
    callback = Failing(error, for_ever=for_ever)
    training = Training(snapshot_every=2, on_instability=callback)
    run(training)
    assert_same(training.state(), expected)
    assert training.guard.failures == {"on_instability": 2 if for_ever else 1}
    assert len(said) == 1


def test_a_callback_that_is_interrupted_ends_the_training():
    training = Training(on_instability=Failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        training.guard.step(bad_batch())


# -- reports


class Broken(logging.Handler):
    def handle(self, record):
        raise RuntimeError("no log")


def test_a_logging_handler_that_raises(expected):
    handler = Broken()
    logging.getLogger("torchnan").addHandler(handler)
    try:
        training = Training(snapshot_every=2, on_instability=Failing(ValueError("mine")))
        run(training)
    finally:
        logging.getLogger("torchnan").removeHandler(handler)
    assert_same(training.state(), expected)
    assert training.guard.failures == {"on_instability": 2}


def test_a_recovery_log_that_cannot_be_written(expected, said, tmp_path):
    """Fails when ``RecoveryLog`` does not report it."""
    run(Training(snapshot_every=2, log=tmp_path / "log.jsonl"))
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    training = Training(snapshot_every=2, log="/dev/full")
    run(training)
    assert_same(training.state(), expected)
    assert training.guard.failures == {"writing to the recovery log": len(lines)}
    assert len(said) == 1
    assert "No space left on device" in said[0]


def test_a_replay_that_fails_is_reported_and_the_step_is_skipped(expected):
    """The step function runs once, and behaves differently afterwards."""
    runs = {"n": 0}

    def step(model, batch):
        runs["n"] += 1
        if not batch[0].isfinite().all() and runs["n"] % 2 == 0:
            raise ConnectionError("the data server has gone")
        return step_of(model, batch)

    training = Training(step, snapshot_every=2)
    results = [training.guard.step(batch_of(0)), training.guard.step(batch_of(1))]
    runs["n"] = 0
    event = training.guard.step(bad_batch(2)).event
    assert all(result.applied for result in results)
    assert (event.action, event.cause) == ("skip", "unknown")
    assert "not replayed: it raised ConnectionError when run again" in event.notes[0]


# -- rejected before the training


def test_places_that_cannot_be_written_to_are_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    for options in (
        {"log": tmp_path / "fifo"},
        {"log": tmp_path},
        {"log": tmp_path / "file" / "log"},
        {"captures": tmp_path / "file"},
        {"snapshot_every": 1, "snapshot_folder": tmp_path / "file"},
    ):
        with pytest.raises(OSError, match=r"cannot be opened|File exists|Not a directory|Is a directory"):
            Training(**options)


def test_warnings_that_are_errors_do_not_end_a_guarded_training(expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchnan.NonFiniteWarning)
        warnings.simplefilter("error", RuntimeWarning)
        training = Training(snapshot_every=2)
        run(training)
    assert_same(training.state(), expected)


def test_the_optimizers_own_error_arrives_and_nothing_is_applied():
    error = RuntimeError("the program's own")
    training = Training()
    training.guard.step(batch_of(0))
    before = [p.detach().clone() for p in training.model.parameters()]
    training.optimizer.register_step_pre_hook(Failing(error))
    with pytest.raises(RuntimeError) as raised:
        training.guard.step(batch_of(1))
    assert raised.value is error
    assert all(torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
