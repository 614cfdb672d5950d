"""Rollback: snapshots, the cut and ramp of the learning rate, running out of memory, and their log entries."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from torch import nn

import torchnan
from tests.support.guarded_steps import NAN, Net, Training, assert_same, bad_batch, batch_of, step_of
from torchnan.recovery import TrainingStopped
from torchnan.training.guard.snapshots import DiskSnapshots


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def flip_a_weight(training):
    training.model.a.weight.data[3, 2] = math.inf


# -- rollback


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_bad_weights_are_rolled_back(where, tmp_path):
    folder = {"snapshot_folder": tmp_path / "snapshots"} if where == "disk" else {}
    training = Training(snapshot_every=2, log=tmp_path / "log.jsonl", **folder)
    states = [training.state()]
    for i in range(5):
        training.guard.step(batch_of(i))
        states.append(training.state())
    flip_a_weight(training)
    event = training.guard.step(batch_of(5)).event
    assert (event.cause, event.action, event.snapshot, event.lr_factor) == ("model", "rollback", 4, 0.5)
    assert training.guard.step_number == 4
    assert_same(training.state(), states[4])
    kinds = [(line["kind"], line["step"]) for line in lines_of(tmp_path / "log.jsonl")]
    assert kinds == [("snapshot", 0), ("snapshot", 2), ("snapshot", 4), ("step", 6)]
    assert stat.S_IMODE((tmp_path / "log.jsonl").stat().st_mode) == 0o600


def test_the_report_of_a_rollback_says_where_the_run_goes_on_and_how():
    training = Training(snapshot_every=1, lr_factor=0.25)
    training.guard.step(batch_of(0))
    (rate,) = {group["lr"] for group in training.optimizer.param_groups}
    flip_a_weight(training)
    event = training.guard.step(batch_of(1)).event
    assert event.lr == (rate / 4,) * len(training.optimizer.param_groups)
    assert f"\n  back to   step 1, learning rate {rate / 4:.4g} (times 0.25)" in str(event)


def test_random_numbers_go_back_too():
    training, plain = Training(snapshot_every=1, lr_factor=1.0), Training()
    training.guard.step(batch_of(0))
    flip_a_weight(training)
    assert training.guard.step(batch_of(1)).event.snapshot == 1
    training.guard.step(batch_of(1))
    torch.manual_seed(0)
    plain = Training()
    plain.guard.step(batch_of(0))
    plain.guard.step(batch_of(1))
    assert_same(training.state(), plain.state())


def test_a_bad_state_is_never_kept(tmp_path):
    training = Training(snapshot_every=1, log=tmp_path / "log.jsonl")
    update = training.optimizer.register_step_post_hook(lambda *_: flip_a_weight(training))
    training.guard.step(batch_of(0))
    update.remove()
    refused = next(line for line in lines_of(tmp_path / "log.jsonl") if line["kind"] == "no_snapshot")
    assert refused["step"] == 1
    assert refused["reason"] == "not finite: a.weight"
    assert training.guard.step(batch_of(1)).event.snapshot == 0


def test_a_snapshot_is_not_changed_by_later_steps(tmp_path):
    training = Training(snapshot_every=3, snapshots=1)
    training.guard.step(batch_of(0))
    first = training.state()
    training = Training(snapshot_every=3, snapshots=1)
    for rate in (1.0, 0.5):  # twice from the same snapshot
        assert training.guard._update.lr_cut.factor == rate
        training.guard.step(batch_of(0))
        if rate == 1.0:
            assert_same(training.state(), first)
        training.guard.step(batch_of(1))
        flip_a_weight(training)
        assert training.guard.step(batch_of(2)).event.snapshot == 0
        assert training.guard.step_number == 0


def test_a_rollback_that_was_not_enough_goes_further_back():
    training = Training(snapshot_every=1, snapshots=3)
    for i in range(4):
        training.guard.step(batch_of(i))
    went_back_to = []
    for i in range(2):
        flip_a_weight(training)
        went_back_to.append(training.guard.step(batch_of(i)).event.snapshot)
    assert went_back_to == [4, 3]


def test_rollbacks_are_a_budget():
    training = Training(snapshot_every=1, max_rollbacks=1)
    flip_a_weight(training)
    with pytest.raises(TrainingStopped, match="no snapshot to go back to"):
        training.guard.step(batch_of(0))
    training = Training(snapshot_every=1, max_rollbacks=1)
    training.guard.step(batch_of(0))
    flip_a_weight(training)
    training.guard.step(batch_of(1))
    flip_a_weight(training)
    with pytest.raises(TrainingStopped, match=r"1 rollbacks are spent \(max_rollbacks\)") as stopped:
        training.guard.step(batch_of(1))
    assert stopped.value.exit_code == 83


def test_too_many_skips_are_rolled_back_where_there_is_a_snapshot():
    training = Training(snapshot_every=1, max_consecutive=2)
    training.guard.step(batch_of(0))
    actions = [training.guard.step(bad_batch(i)).event.action for i in range(3)]
    assert actions == ["skip", "skip", "rollback"]


def test_functions_of_ones_own_save_and_load(tmp_path):
    saved = {}

    def save(step):
        saved[step] = copy.deepcopy(training.model.state_dict())

    def load(step):
        training.model.load_state_dict(saved[step])

    training = Training(snapshot_every=2, save=save, load=load)
    for i in range(3):
        training.guard.step(batch_of(i))
    flip_a_weight(training)
    assert training.guard.step(batch_of(3)).event.snapshot == 2
    assert sorted(saved) == [0, 2]
    assert_same(training.model.state_dict(), saved[2])


class Data:
    """Counts the batches that it has returned."""

    def __init__(self):
        self.position = 0

    def next(self):
        self.position += 1
        return batch_of(self.position)

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.mark.parametrize(("rewind", "position"), [(True, 2), (False, 4)])
def test_the_data_go_back_only_if_they_are_to(rewind, position):
    data = Data()
    training = Training(snapshot_every=2, data=data, rewind_data=rewind)
    for _ in range(3):
        training.guard.step(data.next())
    flip_a_weight(training)
    assert training.guard.step(data.next()).event.snapshot == 2
    assert data.position == position


def test_a_run_resumes_from_the_disk(tmp_path):
    options = dict(snapshot_every=2, snapshot_folder=tmp_path)
    training = Training(**options)
    assert training.guard.resume() is None
    for i in range(5):
        training.guard.step(batch_of(i))
    whole = training.state()
    again = Training(**options)
    assert again.guard.resume() == 4
    again.guard.step(batch_of(4))
    assert_same(again.state(), whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0-step-00000002", "rank-0-step-00000004"]


def test_snapshots_of_an_earlier_run_are_not_gone_back_to_unasked(tmp_path):
    Training(snapshot_every=1, snapshot_folder=tmp_path).guard.step(batch_of(0))
    again = Training(snapshot_every=1, snapshot_folder=tmp_path)
    with pytest.raises(ValueError, match=r"snapshots of an earlier run, up to step 1: call guard\.resume\(\)"):
        again.guard.step(batch_of(0))
    assert again.guard.resume() == 1
    assert again.guard.step(batch_of(0)).applied


def test_a_snapshot_that_cannot_be_written_is_reported_and_training_continues(tmp_path):
    training = Training(snapshot_every=1, snapshot_folder=tmp_path / "snapshots", log=tmp_path / "log.jsonl")
    training.guard.step(batch_of(0))
    shutil.rmtree(tmp_path / "snapshots")
    (tmp_path / "snapshots").write_text("a file in its place")
    assert training.guard.step(batch_of(1)).applied
    assert lines_of(tmp_path / "log.jsonl")[-1]["kind"] == "no_snapshot"


def test_the_memory_that_is_held_is_reported():
    training = Training(snapshot_every=1, snapshots=2)
    training.guard.step(batch_of(0))
    training.guard.step(batch_of(1))
    weights = sum(p.numel() * 4 for p in training.model.parameters())
    buffers = 2 * 8 * 4 + 8  # of the batch norm
    held = training.guard.memory()
    assert held["buffers"] == buffers
    assert 2 * (3 * weights + buffers) <= held["snapshots"] < 2 * (3 * weights + buffers + 8000)  # and random states


def test_schedulers_and_scalers_go_back_too():
    training = Training()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    guard = torchnan.StepGuard(
        training.model, training.optimizer, step_of, scheduler=scheduler, scaler=scaler, snapshot_every=2
    )
    for i in range(3):
        guard.step(batch_of(i))
    assert (scheduler.last_epoch, scaler.get_scale(), training.optimizer.param_groups[0]["lr"]) == (3, 32.0, 0.00125)
    flip_a_weight(training)
    guard.step(batch_of(3))
    assert (scheduler.last_epoch, scaler.get_scale(), training.optimizer.param_groups[0]["lr"]) == (2, 16.0, 0.0025)


# -- the learning rate


def test_the_learning_rate_is_cut_and_ramped_back_unseen_by_schedulers(tmp_path):
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    guard = torchnan.StepGuard(
        model,
        optimizer,
        lambda model, x: model(x).sum(),  # a slope of 1
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
        snapshot_every=1,
        lr_factor=0.5,
        lr_ramp=4,
        log=tmp_path / "log.jsonl",
    )
    one = torch.ones(1, 1)
    guard.step(one)
    model.weight.data.fill_(NAN)
    assert guard.step(one).event.lr_factor == 0.5
    steps = []
    for _ in range(6):
        before = model.weight.item()
        guard.step(one)
        steps.append(before - model.weight.item())
        assert optimizer.param_groups[0]["lr"] == 1.0
    assert steps == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 1.0], rel=1e-6)
    assert [line["step"] for line in lines_of(tmp_path / "log.jsonl") if line["kind"] == "learning_rate"] == [5]


def test_a_second_guard_does_not_inherit_the_cut_of_the_first():
    first = Training(snapshot_every=1)
    first.guard.step(batch_of(0))
    flip_a_weight(first)
    assert first.guard.step(batch_of(1)).event.lr_factor == 0.5
    assert len(first.optimizer._optimizer_step_pre_hooks) == 1
    torchnan.StepGuard(first.model, first.optimizer, step_of)
    assert len(first.optimizer._optimizer_step_pre_hooks) == 0


# -- memory


class Hungry(nn.Module):
    """Has memory for so many rows."""

    def __init__(self, rows):
        super().__init__()
        self.linear, self.rows = nn.Linear(4, 1), rows

    def forward(self, x):
        if len(x) > self.rows:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {len(x)} rows.")
        return self.linear(x).squeeze(1)


def test_a_step_that_does_not_fit_is_halved_with_equal_gradients(tmp_path):
    small, large = Training(model=Hungry(2)), Training(model=Hungry(99))
    large.model.load_state_dict(small.model.state_dict())
    small.guard = torchnan.StepGuard(
        small.model, small.optimizer, step_of, out_of_memory="split", log=tmp_path / "log.jsonl"
    )
    batch = batch_of(0, rows=7)
    result, whole = small.guard.step(batch), large.guard.step(batch)
    assert result.applied
    assert result.norm == pytest.approx(whole.norm, rel=1e-6)
    torch.testing.assert_close(small.model.state_dict(), large.model.state_dict())
    told = [(line["action"], line["cause"], line["reason"]) for line in lines_of(tmp_path / "log.jsonl")]
    assert told == [
        ("split", "out_of_memory", "micro-batches in 2 parts"),
        ("split", "out_of_memory", "micro-batches in 4 parts"),
    ]
    line = next(
        i
        for i, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "raise torch.OutOfMemoryError(" in text
    )
    assert small.guard.events[0].seen == f"CUDA out of memory. Tried to allocate 7 rows. (at {__file__}:{line})"


def test_memory_that_never_suffices_stops_training():
    training = Training(model=Hungry(0), out_of_memory="split", max_splits=2)
    with pytest.raises(TrainingStopped, match=r"halved 2 times \(max_splits\)") as stopped:
        training.guard.step(batch_of(0))
    assert stopped.value.exit_code == 84
    with pytest.raises(TrainingStopped, match="out_of_memory='split' would halve the micro-batches"):
        Training(model=Hungry(0)).guard.step(batch_of(0))


def test_other_errors_are_the_programs():
    def step(model, batch):
        raise RuntimeError("a bug of the program's own")

    with pytest.raises(RuntimeError, match=r"a bug of the program's own"):
        Training(step, out_of_memory="split").guard.step(batch_of(0))


def test_a_batch_that_cannot_be_split_says_so():
    training = Training(model=Hungry(0), out_of_memory="split")
    with pytest.raises(ValueError, match=r"cannot be split: .*batch\[0\] \(8, 4\), batch\[1\] \(3,\)"):
        training.guard.step((torch.zeros(8, 4), torch.zeros(3)))


def test_statistics_of_a_step_that_did_not_fit_are_put_back():
    class Net2(Net):
        def forward(self, x):
            out = super().forward(x)
            if len(x) > 4:
                raise torch.OutOfMemoryError("out of memory")
            return out

    training = Training(model=Net2(), out_of_memory="split")
    training.guard.step(batch_of(0, rows=8))
    assert training.model.norm.num_batches_tracked == 2  # the two halves, not the whole


# -- the log


def test_a_log_on_a_full_disk_is_not_kept_open_and_training_continues():
    """Fails where the file is forgotten and not closed."""

    def opened():
        return [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]

    training = Training(log="/dev/full")
    assert "/dev/full" not in opened()
    assert not training.guard.step(bad_batch()).applied
    assert training.guard.step(batch_of(0)).applied
    assert "/dev/full" not in opened()


class OfOlderVersion:
    """Writes snapshots in the parts that an older version wrote."""

    def __init__(self, model):
        self.model = model

    def state(self):
        return {"weights": {name: p.detach() for name, p in self.model.named_parameters()}, "parts": {}, "data": None}


def test_a_snapshot_of_an_older_version_is_refused_with_what_to_do(tmp_path):
    training = Training(snapshot_every=2, snapshot_folder=tmp_path, health=False)
    DiskSnapshots(OfOlderVersion(training.model), tmp_path, 0).take(4, instead_of=None)
    before = training.state()
    missing = "'modules', 'optimizers', 'outside', 'random'"
    advice = "Go on with that version, or load a checkpoint of your own and give another snapshot_folder"
    with pytest.raises(TrainingStopped) as stopped:
        training.guard.resume()
    assert f"the snapshot has no {missing}: another version of torchnan wrote it. {advice}" in str(stopped.value)
    assert "KeyError" not in str(stopped.value)
    assert_same(training.state(), before)


@pytest.mark.parametrize("lost", [{"ema": Net()}, {"schedule": torch.optim.SGD(Net().parameters(), lr=0.1)}])
def test_a_snapshot_of_something_that_is_not_given_now_names_it(lost, tmp_path):
    Training(snapshot_every=1, snapshot_folder=tmp_path, also=lost).guard.step(batch_of(0))
    again = Training(snapshot_every=1, snapshot_folder=tmp_path, health=False)
    before = again.state()
    (name,) = lost
    with pytest.raises(TrainingStopped, match=f"the snapshot has the state of '{name}': give the guard that again"):
        again.guard.resume()
    assert_same(again.state(), before)
