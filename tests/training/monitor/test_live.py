"""A verdict is reported once, at the step at which it becomes true, and the policy acts on it."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import torchnan
from tests.support.forked_python import run_forked
from tests.support.guarded_steps import Training, bad_batch, batch_of
from tests.support.monitored_training import lines_of, noisy, rows_of, steady
from torchnan.config.options import OptionError
from torchnan.diagnosis import diagnose
from torchnan.recovery import TrainingStopped
from torchnan.training.monitor import online
from torchnan.training.monitor.recent_rows import RecentRows
from torchnan.training.monitor.row import Row


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def warned():
    """The messages to torchnan's logger."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("torchnan").addHandler(handler)
    yield said
    logging.getLogger("torchnan").removeHandler(handler)


# -- reported once


def test_a_healthy_run_gets_no_verdict(path, warned):
    monitor = torchnan.Monitor(log=path)
    steady(monitor, noisy(400), grad_norm=1.0, lr=1e-3)
    assert monitor.verdicts == []
    assert warned == []
    assert monitor.failures == {}


def test_a_spike_is_reported_once_everywhere(path, warned):
    asked = []
    monitor = torchnan.Monitor(log=path, on_instability=asked.append)
    losses = noisy(200)
    steady(monitor, losses[:150], grad_norm=1.0)
    monitor.step(loss=6.0, grad_norm=50.0)
    (told,) = monitor.verdicts
    assert (told.kind, told.cause, told.first_step) == ("spike", "long_tail_batch", 151)
    steady(monitor, losses[150:], grad_norm=1.0)
    assert asked == monitor.verdicts == [told]
    (line,) = [line for line in lines_of(path) if "verdict" in line]
    assert line["step"] == 151
    assert line["verdict"]["branch"] == told.branch
    (said,) = warned
    assert said.startswith("torchnan: spike from step 151 on: long tail batch")
    assert "remedy" in said


def test_another_spike_is_reported_too(path):
    monitor = torchnan.Monitor(log=path)
    losses = noisy(400)
    losses[150], losses[300] = 6.0, 7.0
    steady(monitor, losses)
    assert [v.first_step for v in monitor.verdicts if v.kind == "spike"] == [151, 301]


def test_a_nan_is_reported_at_its_step(path):
    monitor = torchnan.Monitor(log=path)
    steady(monitor, [*noisy(20), float("nan"), *noisy(30, seed=1)])
    assert [(v.kind, v.first_step) for v in monitor.verdicts] == [("nonfinite", 21)]
    assert [line["step"] for line in lines_of(path) if "verdict" in line] == [21]


def test_a_run_that_goes_back_is_reported_anew(path):
    monitor = torchnan.Monitor(log=path)
    for i, loss in enumerate([*noisy(20), float("nan")], 1):
        monitor.step(step=i, loss=loss)
    for i, loss in enumerate([*noisy(10, seed=1), float("nan")], 11):
        monitor.step(step=i, loss=loss)
    assert [v.first_step for v in monitor.verdicts] == [21, 21]


def test_a_callback_that_raises_is_contained(path):
    def fail(verdict):
        raise RuntimeError("no")

    monitor = torchnan.Monitor(log=path, on_instability=fail)
    steady(monitor, [1.0, float("nan"), 1.0])
    assert len(rows_of(path)) == 3
    assert monitor.failures == {"the monitor's on_instability": 1}


def test_live_verdicts_match_the_log(path):
    """The verdicts of the window are those of the log read back, where all of it is in the window."""
    monitor = torchnan.Monitor(log=path)
    losses = noisy(300)
    losses[200] = 9.0
    steady(monitor, losses, grad_norm=1.0, lr=0.1)
    read_back = diagnose(torchnan.diagnosis.read(path)).verdicts
    assert [(v.kind, v.first_step) for v in read_back] == [(v.kind, v.first_step) for v in monitor.verdicts]


def test_the_tree_is_walked_when_there_is_a_reason_or_every_few_rows(monkeypatch):
    walks = []
    walk = online.OnlineDiagnosis.diagnose
    monkeypatch.setattr(online.OnlineDiagnosis, "diagnose", lambda self: walks.append(len(self.window)) or walk(self))
    monitor = torchnan.Monitor(judge_every=50)
    steady(monitor, [2.0 + 0.01 * (i % 2) for i in range(120)])
    assert walks == [50, 100]
    monitor.step(loss=float("inf"))
    assert walks == [50, 100, 121]
    steady(monitor, [float("inf")] * 9)
    assert walks == [50, 100, 121]


def test_the_end_diagnoses_the_rows_since_the_last_walk(path):
    monitor = torchnan.Monitor(log=path, judge_every=1000)
    rising = [2.0 + max(0, i - 200) * 0.01 + 0.01 * (i % 7) for i in range(500)]
    steady(monitor, rising, lr=0.1)
    monitor.close()
    assert [v.kind for v in monitor.verdicts] == ["silent_divergence"]
    assert [line["step"] for line in lines_of(path) if "verdict" in line] == [500]
    monitor.close()
    assert len(monitor.verdicts) == 1


def test_a_forked_process_leaves_the_rows_to_its_parent(path):
    code = """
import os, sys, torchnan
monitor = torchnan.Monitor(log=sys.argv[1], judge_every=1000)
for i in range(500):
    monitor.step(loss=2.0 + max(0, i - 200) * 0.01 + 0.01 * (i % 7))
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""
    assert run_forked(code, str(path)).returncode == 0
    assert [line["step"] for line in lines_of(path) if "verdict" in line] == [500]


def test_the_window_is_bounded(path):
    monitor = torchnan.Monitor(log=path, window=50)
    steady(monitor, noisy(333), lr=0.1)
    window = monitor.record._online.window
    run = window.run()
    assert run.step.tolist() == list(range(284, 334))
    assert run.columns["loss"].values.tolist() == noisy(333)[-50:]


def test_a_window_is_what_was_added_however_many_rows_wait():
    window, kept = RecentRows(50, None, ["a", "b"]), []
    for i in range(1, 400):
        step = i if i % 90 else i - 30  # the run goes back
        kept = [row for row in kept if row.step < step][-49:]
        kept.append(Row(step, loss=None if i % 3 == 0 else float(i), lr=[0.1, i / 10] if i % 4 else None))
        window.add(kept[-1])
        if i % 17 == 0:
            window.set_skipped(True)
            kept[-1].skipped = True
        if i % 37 and i % 90:
            continue
        run = window.run()
        assert len(window) == len(kept)
        assert run.step.tolist() == [row.step for row in kept]
        assert run.column("loss").given.tolist() == [row.loss is not None for row in kept]
        wanted = [max(row.lr) for row in kept if row.lr]
        assert run.column("lr").values[run.column("lr").given].tolist() == wanted
        assert run.column("skipped").given.tolist() == [row.skipped is not None for row in kept]


# -- in a guard


def test_the_guard_feeds_all_that_it_knows(path):
    monitor = torchnan.Monitor(log=path)
    training = Training(monitor=monitor, max_norm=0.1)
    result = training.guard.step(batch_of(0))
    training.guard.step(batch_of(0), batch_of(1))
    rows = rows_of(path)
    assert rows[0]["grad_norm"] == result.norm > 0.1
    assert rows[0]["loss"] == pytest.approx(result.loss.item())
    assert (rows[0]["lr"], rows[0]["skipped"]) == ([0.01], False)
    by_hand = torchnan.Monitor(log=path.with_name("by_hand.jsonl"))
    by_hand.step(batch=batch_of(0))
    assert rows_of(path.with_name("by_hand.jsonl"))[0]["batch_digest"] == rows[0]["batch_digest"]
    assert rows[1]["batch_digest"] != rows[0]["batch_digest"]
    assert monitor.failures == training.guard.failures == {}


def test_a_bad_step_has_its_row_and_its_origin(path):
    monitor = torchnan.Monitor(log=path)
    training = Training(monitor=monitor)
    training.guard.step(batch_of(0))
    training.guard.step(bad_batch())
    training.guard.step(batch_of(1))
    rows = rows_of(path)
    assert [(row["step"], row["loss"] == "NaN", row["skipped"]) for row in rows] == [
        (1, False, False),
        (2, True, True),
        (3, False, False),
    ]
    (finding,) = [line for line in lines_of(path) if "finding" in line]
    assert (finding["step"], finding["finding"]["origin"], finding["finding"]["op"]) == (2, "input", "aten::addmm")
    (told,) = monitor.verdicts
    assert "aten::addmm" in told.evidence["origin"]


def test_a_loop_of_the_programs_own(path):
    monitor = torchnan.Monitor(log=path)
    training = Training(monitor=monitor)
    guard, model, optimizer = training.guard, training.model, training.optimizer
    for batch in (batch_of(0), bad_batch(), batch_of(1)):
        optimizer.zero_grad()
        with guard.watch(batch):
            loss = (model(batch[0]) - batch[1]).square().mean()
            loss.backward()
        if guard.ok_to_step(loss):
            optimizer.step()
    assert [row["skipped"] for row in rows_of(path)] == [False, True, False]
    assert lines_of(path)[0]["dtype"] == "float32"


def test_a_guarded_run_is_bit_for_bit_the_same_with_a_monitor(path):
    plain, watched = Training(), Training(monitor=torchnan.Monitor(log=path, weights_every=1))
    for i in range(4):
        torch.manual_seed(i)
        plain.guard.step(batch_of(i))
        torch.manual_seed(i)
        watched.guard.step(batch_of(i))
    for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(a, b)


# -- as a trigger


class Spiky(nn.Module):
    """A loss that the batch determines, with a gradient."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, level):
        return level + (self.w * 0.01).sum()


def unstable(path, answer, **options):
    """A run that spikes at step 151."""
    training = Training(
        lambda model, level: model(level),
        Spiky(),
        monitor=torchnan.Monitor(log=path),
        instability={"spike": answer},
        **options,
    )
    results = [training.guard.step(torch.tensor(loss)) for loss in [*noisy(150), 6.0]]
    assert all(result.applied and result.event is None for result in results[:150])
    return training, results[150]


def test_a_spike_is_skipped(path):
    training, result = unstable(path, "skip")
    assert not result.applied
    assert (result.event.what, result.event.cause, result.event.action) == ("instability", "instability", "skip")
    assert result.event.reason == "the policy's answer to this instability"
    assert result.event.seen.startswith("spike (")
    assert rows_of(path)[-1]["skipped"] is True
    assert training.guard.step(torch.tensor(2.0)).applied


def test_a_spike_is_rolled_back(path):
    training, result = unstable(path, "rollback", snapshot_every=50)
    assert (result.event.action, result.event.snapshot) == ("rollback", 150)
    assert training.guard.step(torch.tensor(2.0)).step == 151


def test_a_spike_ends_the_training(path):
    with pytest.raises(TrainingStopped, match="the policy's answer to this instability"):
        unstable(path, "raise")
    assert rows_of(path)[-1]["skipped"] is True


def test_a_spike_cuts_the_learning_rate_from_its_step_on(path):
    training, result = unstable(path, "cut_lr", lr_factor=0.25, lr_ramp=1000)
    assert result.applied
    (event,) = training.guard.events
    assert (event.action, event.lr_factor) == ("cut_lr", 0.25)
    assert "at step 151 the run is unstable" in str(event)
    training.guard.step(torch.tensor(2.0))
    assert rows_of(path)[-1]["lr"] == [pytest.approx(0.01 * 0.25, rel=0.01)]


def test_a_spike_lowers_the_clip_threshold(path):
    training, result = unstable(path, "lower_clip", clip_factor=0.5)
    assert result.applied
    usual = (2 * 0.01**2) ** 0.5
    (event,) = training.guard.events
    assert event.notes == [f"gradients are clipped to a norm of {usual / 2:.4g}"]
    training.guard.step(torch.tensor(2.0))
    assert training.model.w.grad.norm().item() == pytest.approx(usual / 2, rel=1e-3)
    state = training.guard.state_dict()
    other = Training(lambda model, level: model(level), Spiky())
    other.guard.load_state_dict(state)
    other.guard.step(torch.tensor(2.0))
    assert other.model.w.grad.norm().item() == pytest.approx(usual / 2, rel=1e-3)


def test_the_choice_of_the_program_precedes_the_table(path):
    _, result = unstable(path, "raise", on_instability=lambda event: "skip")
    assert (result.event.action, result.event.reason) == ("skip", "on_instability asked for it")


def test_the_table_in_toml_and_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "p.toml").write_text('[instability]\nspike = "skip"\nplateau = "raise"\n')
    training = Training(policy=tmp_path / "p.toml", monitor=torchnan.Monitor())
    assert training.guard.policy.instability == {"spike": "skip", "plateau": "raise"}
    monkeypatch.setenv("TORCHNAN_POLICY_INSTABILITY", "silent_divergence=cut_lr, spike=lower_clip")
    made = Training(monitor=torchnan.Monitor()).guard.policy
    assert made.instability == {"silent_divergence": "cut_lr", "spike": "lower_clip"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"instability": {"spike": "skip"}}, "cannot be used without a monitor that diagnoses the run"),
        (
            {"instability": {"spike": "skip"}, "monitor": dict(live=False)},
            "cannot be used without a monitor that diagnoses the run",
        ),
        (
            {"instability": {"spike": "rollback"}, "monitor": {}},
            "has a rollback, and there are no snapshots to go back to: set snapshot_every",
        ),
        ({"instability": {"healthy": "skip"}, "monitor": {}}, "instability takes actions (lower_clip, cut_lr, skip"),
    ],
)
def test_a_table_that_could_not_be_followed_is_refused(options, said):
    if "monitor" in options:
        options = {**options, "monitor": torchnan.Monitor(**options["monitor"])}
    with pytest.raises(OptionError) as refused:
        Training(**options)
    assert said in str(refused.value)


def test_an_object_that_is_not_a_monitor_is_rejected():
    with pytest.raises(TypeError, match=r"monitor is a str: StepGuard takes a torchnan\.Monitor"):
        Training(monitor="run.jsonl")


# -- once more in float32


class Narrow(nn.Module):
    """Too much for float16 where the batch is large; with running statistics and random numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.Linear(8, 1)

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x))) * x.abs().max()).squeeze(1)


def under_autocast(model, batch):
    with torch.autocast("cpu", dtype=torch.float16):
        return model(batch[0]).square().mean() / 1e6


def in_half(model, batch):
    return model(batch[0].half()).float().square().mean() / 1e9


def structural(model, batch):
    with torch.autocast("cpu", dtype=torch.float16):
        return model(batch[0]).square().mean() * (batch[0].max() / batch[0].min().clamp(max=0).relu())


@pytest.mark.breadth(2)
@pytest.mark.parametrize(
    ("step", "half_weights", "finite"),
    [(under_autocast, False, True), (in_half, True, True), (structural, False, False)],
)
@pytest.mark.parametrize("rerun", [True, False])
def test_a_bad_step_in_float16_is_run_again_in_float32(path, step, half_weights, finite, rerun):
    model = Narrow().half() if half_weights else Narrow()
    training = Training(step, model, monitor=torchnan.Monitor(log=path, dtype="float16", rerun_in_fp32=rerun))
    batch = (batch_of(0)[0] * 1e5 if finite else batch_of(0)[0], batch_of(0)[1])
    before, random = training.state(), torch.get_rng_state()
    other = Training(step, Narrow().half() if half_weights else Narrow())
    torch.set_rng_state(random)
    event = training.guard.step(batch).event
    after = torch.get_rng_state()
    torch.set_rng_state(random)
    other.guard.step(batch)
    assert torch.equal(after, torch.get_rng_state())
    assert event.verdict == "persistent"
    assert training.guard.failures == {}
    assert event.finite_in_float32 is (finite if rerun else None)
    reruns = [line["rerun"] for line in lines_of(path) if "rerun" in line]
    assert reruns == ([{"step": 1, "dtype": "float32", "finite": finite}] if rerun else [])
    for name, kept in before[0].items():
        now = training.model.state_dict()[name]
        assert now.dtype == kept.dtype
        assert torch.equal(now, kept), name
    assert all(parameter.grad is None for parameter in training.model.parameters())


def test_a_bad_step_in_float32_is_not_run_again(path):
    training = Training(monitor=torchnan.Monitor(log=path))
    assert training.guard.step(bad_batch()).event.finite_in_float32 is None
    assert training.guard.failures == {}
