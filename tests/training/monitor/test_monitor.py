"""A row per step: its contents, its cost for the program, and invalid arguments."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchnan
from tests.support.forked_python import run_forked
from tests.support.guarded_steps import batch_of
from tests.support.monitored_training import lines_of, rows_of, train
from torchnan.diagnosis import read
from torchnan.training.monitor import async_copy

INF, NAN = math.inf, math.nan


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


# -- contents of a row


def test_a_row_has_the_given_values(path):
    monitor = torchnan.Monitor(log=path)
    train(monitor, 3)
    header, *rows = lines_of(path)
    assert (header["torchnan"], header["version"], header["dtype"], header["groups"]) == ("run", 1, "float32", ["0"])
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row.keys() >= {"loss", "grad_norm", "lr", "batch_digest"} for row in rows)
    assert rows[0]["lr"] == [0.1]
    assert monitor.failures == {}


def test_unknown_values_are_left_out(path):
    monitor = torchnan.Monitor(log=path)
    monitor.step(loss=1.5)
    monitor.step(step=7)
    assert rows_of(path) == [{"step": 1, "loss": 1.5}, {"step": 7}]


def test_losses_of_micro_batches_are_averaged(path):
    monitor = torchnan.Monitor(log=path)
    monitor.step(loss=[1.0, torch.tensor(2.0), torch.tensor([6.0])])
    assert rows_of(path)[0]["loss"] == 3.0


def test_numbers_that_json_does_not_have_are_words(path):
    monitor = torchnan.Monitor(log=path, live=False)
    monitor.step(loss=NAN, grad_norm=torch.tensor(INF), lr=-INF)
    row = rows_of(path)[0]
    assert (row["loss"], row["grad_norm"], row["lr"]) == ("NaN", "Infinity", ["-Infinity"])


def test_weights_are_measured_every_so_many_steps(path):
    monitor = torchnan.Monitor(log=path, weights_every=4)
    model, _ = train(monitor, 9)
    rows = rows_of(path)
    assert [row["step"] for row in rows if "weight_norm" in row] == [1, 5, 9]
    assert [row["step"] for row in rows if "update_ratio" in row] == [5, 9]
    norm = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).norm().item()
    assert rows[-1]["weight_norm"] == [pytest.approx(norm, rel=1e-6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_update_ratio_is_that_of_all_weights_where_all_are_sampled(path, dtype):
    model = nn.Linear(8, 4).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    monitor = torchnan.Monitor(log=path, weights_every=2)
    monitor.step(model=model, optimizer=optimizer)
    monitor.step(model=model, optimizer=optimizer)
    before = [p.detach().clone().float() for p in model.parameters()]
    model(torch.ones(2, 8, dtype=dtype)).sum().backward()
    optimizer.step()
    monitor.step(model=model, optimizer=optimizer)
    after = [p.detach().float() for p in model.parameters()]
    change = sum((a - b).square().sum() for a, b in zip(after, before, strict=True)).sqrt()
    wanted = (change / sum(b.square().sum() for b in before).sqrt()).item()
    assert rows_of(path)[-1]["update_ratio"] == [pytest.approx(wanted, rel=1e-4)]


def test_a_sample_of_large_weights_counts_by_their_size(path):
    large, small = nn.Parameter(torch.ones(1000, 300)), nn.Parameter(torch.ones(3000))
    optimizer = torch.optim.SGD([large, small], lr=0.1)
    monitor = torchnan.Monitor(log=path, weights_every=1)
    monitor.step(optimizer=optimizer)
    with torch.no_grad():
        large += 0.01
        small += 1.0
    monitor.step(optimizer=optimizer)
    wanted = ((300_000 * 0.01**2 + 3000 * 1.0**2) / 303_000) ** 0.5
    assert rows_of(path)[-1]["update_ratio"] == [pytest.approx(wanted, rel=1e-3)]


def test_groups_are_named_by_their_differences(path):
    model = nn.Linear(4, 2)
    groups = [
        {"params": [model.weight], "weight_decay": 0.1},
        {"params": [model.bias], "weight_decay": 0.0, "name": "bias\x1b[2J"},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    torchnan.Monitor(log=path).step(optimizer=optimizer)
    header, row = lines_of(path)
    assert header["groups"] == ["0: weight_decay=0.1", "1: bias\x1b[2J"]
    assert len(row["weight_norm"]) == len(row["lr"]) == 2


def test_another_parameter_group_begins_another_run(path):
    monitor = torchnan.Monitor(log=path)
    _, optimizer = train(monitor, 2)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    monitor.step(optimizer=optimizer)
    assert [line["groups"] for line in lines_of(path) if "torchnan" in line] == [["0"], ["0", "1"]]


def test_a_scaler_reports_its_scale_and_skipped_steps(path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    monitor = torchnan.Monitor(log=path)
    for factor in (1.0, 1.0, INF, 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.step(optimizer=optimizer, scaler=scaler)
    assert lines_of(path)[0]["dtype"] == "float16"
    assert [(row["loss_scale"], row["skipped"]) for row in rows_of(path)] == [
        (1024.0, False),
        (1024.0, False),
        (2048.0, True),
        (1024.0, False),
    ]


# -- dtype of the model's computation


def _forward(kind):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    if kind == "half weights":
        return model.bfloat16()(torch.ones(1, 4, dtype=torch.bfloat16)).float().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        return model(torch.ones(1, 4)).float().sum()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("autocast", "bfloat16"), ("half weights", "bfloat16"), ("plain", "float32")]
)
def test_the_dtype_is_seen_in_the_graph_of_the_first_loss(path, kind, dtype):
    loss = _forward(kind)
    loss.backward()
    torchnan.Monitor(log=path).step(loss=loss)
    assert lines_of(path)[0]["dtype"] == dtype


def test_a_dtype_that_cannot_be_seen_is_unknown_and_can_be_given(path):
    torchnan.Monitor(log=path).step(loss=1.0, model=nn.Linear(1, 1))
    torchnan.Monitor(log=path, dtype="float16").step(loss=1.0)
    assert [line["dtype"] for line in lines_of(path) if "torchnan" in line] == [None, "float16"]


# -- late


class OnItsWay(async_copy.AsyncCopy):
    """Like a GPU: the numbers arrive when they are ready."""

    done = False

    @staticmethod
    def numbers_on_host(tensors):
        return [None] * len(tensors)

    @property
    def is_ready(self):
        return OnItsWay.done


class NoReads(TorchDispatchMode):
    """Reading a number waits for the device that computes it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(func), "a value was read"
        return func(*args, **(kwargs or {}))


def test_numbers_that_are_still_computed_are_not_waited_for(path, monkeypatch):
    monkeypatch.setattr("torchnan.training.monitor.pending_row.AsyncCopy", OnItsWay)
    monkeypatch.setattr(OnItsWay, "done", False)
    monitor = torchnan.Monitor(log=path, weights_every=1)
    train_without_reads(monitor, 3)
    assert rows_of(path) == []
    assert monitor.failures == {}
    OnItsWay.done = True
    monitor.step(loss=torch.tensor(5.0))
    assert [row["step"] for row in rows_of(path)] == [1, 2, 3, 4]
    assert rows_of(path)[3]["loss"] == 5.0


def train_without_reads(monitor, steps):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), foreach=True)
    for i in range(steps):
        x, _ = batch_of(i)
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))
        with NoReads():
            monitor.step(loss=loss, model=model, optimizer=optimizer, batch=x, grad_norm=norm)


def test_so_many_rows_may_wait_and_the_end_waits_for_all(path, monkeypatch):
    monkeypatch.setattr("torchnan.training.monitor.pending_row.AsyncCopy", OnItsWay)
    monkeypatch.setattr(OnItsWay, "done", False)
    monitor = torchnan.Monitor(log=path)
    for i in range(70):
        monitor.step(loss=torch.tensor(float(i)))
    assert [row["step"] for row in rows_of(path)] == [1, 2, 3, 4, 5, 6]
    monitor.close()
    assert [row["loss"] for row in rows_of(path)] == list(range(70))


def test_a_value_is_that_of_its_step(path, monkeypatch):
    """The tensors are used again by the program before their numbers are read."""
    monkeypatch.setattr("torchnan.training.monitor.pending_row.AsyncCopy", Copying)
    monitor = torchnan.Monitor(log=path)
    loss = torch.tensor(1.0)
    monitor.step(loss=loss)
    loss.fill_(2.0)
    monitor.flush()
    assert rows_of(path)[0]["loss"] == 1.0


class Copying(async_copy.AsyncCopy):
    """Pretends to come from a device, which does not exist here: copied at once, as that stream would do."""

    def __init__(self, tensors):
        super().__init__({name: tensor.clone() for name, tensor in tensors.items()})

    @staticmethod
    def numbers_on_host(tensors):
        return [None] * len(tensors)

    is_ready = False


# -- other trackers


def test_trackers_get_finite_numbers_alone():
    seen = []
    monitor = torchnan.Monitor(callback=lambda step, scalars: seen.append((step, scalars)))
    monitor.step(loss=1.0, grad_norm=INF, lr=[0.1, 0.2])
    monitor.step(loss=NAN, skipped=True)
    assert seen == [(1, {"loss": 1.0, "lr/0": 0.1, "lr/1": 0.2}), (2, {"skipped": 1.0})]


def test_tensorboard_reads_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    monitor = torchnan.Monitor(tensorboard=tmp_path)
    for loss in (3.0, 2.0, NAN, 1.0):
        monitor.step(loss=loss)
    monitor.close()
    run = read(tmp_path)
    assert run.step.tolist() == [1, 2, 4]
    assert run.columns["loss"].values.tolist() == [3.0, 2.0, 1.0]


def test_a_failing_tracker_is_reported_once_and_training_continues(path, caplog):
    def fail(step, scalars):
        raise RuntimeError("no network")

    monitor = torchnan.Monitor(log=path, callback=fail)
    monitor.step(loss=1.0)
    monitor.step(loss=2.0)
    assert len(rows_of(path)) == 2
    assert monitor.failures == {"the monitor's callback": 2}


# -- never in the way


def test_a_step_leaves_the_program_as_it_was(path):
    monitor = torchnan.Monitor(log=path, weights_every=1)
    model, optimizer = train(torchnan.Monitor(), 2)
    watched, _ = train(monitor, 2)
    for a, b in zip(model.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
    state = torch.get_rng_state()
    monitor.step(loss=torch.tensor(NAN), model=model, optimizer=optimizer, batch=batch_of(0))
    assert torch.equal(state, torch.get_rng_state())


def test_a_detection_does_not_see_reads_of_the_monitor(path):
    monitor, model = torchnan.Monitor(log=path, live=False), nn.Linear(1, 1)
    with torchnan.detect(action="log") as watch:
        bad = torch.tensor([-1.0]).log()
        before = watch.stats()["ops"]
        monitor.step(loss=bad, batch={"x": bad}, model=model)
        assert watch.stats()["ops"] == before
        assert not [f for f in watch.findings if f.harm.kind == "read"]
        del bad


def test_switched_off_nothing_is_done_and_nothing_is_an_error(tmp_path):
    code = """
import sys, torch, torchnan
monitor = torchnan.Monitor(log=sys.argv[1] + "/run.jsonl", tensorboard=sys.argv[1] + "/tb")
monitor.step(loss=torch.tensor(float("nan")))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = torchnan.StepGuard(model, optimizer, lambda m, b: m(b).sum(), monitor=monitor,
                           instability={"spike": "rollback"}, snapshot_every=5)
print(guard.step(torch.ones(1, 1)).applied)
monitor.close()
print("torchnan.diagnosis" in sys.modules)
"""
    ended = run_forked(code, str(tmp_path), TORCHNAN="0")
    assert (ended.returncode, ended.stdout) == (0, "True\nFalse\n"), ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_numpy_the_monitor_says_what_to_install(path):
    code = f"""
import sys
sys.modules["numpy"] = None
import torch, torchnan
try:
    torchnan.Monitor()
except ImportError as error:
    print(error)
monitor = torchnan.Monitor(log={str(path)!r}, live=False)
monitor.step(loss=1.0)
"""
    ended = run_forked(code)
    assert ended.returncode == 0, ended.stderr
    assert "pip install torchnan[diagnose], or pass live=False" in ended.stdout
    assert len(rows_of(path)) == 1


def test_the_program_may_end_without_closing(tmp_path):
    pytest.importorskip("tensorboard")
    code = """
import sys, torchnan
monitor = torchnan.Monitor(tensorboard=sys.argv[1])
monitor.step(loss=1.0)
"""
    assert run_forked(code, str(tmp_path)).returncode == 0
    assert read(tmp_path).step.tolist() == [1]


def test_the_module_of_the_monitor_has_it_too():
    assert torchnan.NaNState().total_nans == 0
    assert torchnan.Monitor is sys.modules["torchnan.monitor"].Monitor
