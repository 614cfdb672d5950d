"""Whatever fails on one rank, all ranks come to the same collectives: what they do is decided by all of them."""

from __future__ import annotations

import json

import pytest

from tests.support.forked_python import run_forked_ranks

START = """
import gc, json, os, shutil, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import torchnan
from torchnan.recovery import TrainingStopped
from torchnan.config.options import OptionError

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(sys.argv[1])
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = lambda m, x: m(x).square().mean()
x = torch.randn(4, 4)
bad = torch.full((4, 4), float("nan"))

def guard(step_fn=step, **options):
    return torchnan.StepGuard(model, optimizer, step_fn, health=False, log=folder / "log.jsonl", **options)

def spoil():
    with torch.no_grad():
        model.module[0].weight[0, 0] = float("nan")

told = {}
"""

ENDING = """
(folder / f"{rank}.json").write_text(json.dumps(told))
del model, optimizer
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


def told_by(folder, program):
    """Runs a program on two ranks. Returns what each has told, and the events of the log by kind."""
    script = folder / "train.py"
    script.write_text(START + program + ENDING)
    ended = run_forked_ranks(script, 2, str(folder))
    assert ended.returncode == 0, ended.stderr[-3000:]
    log = folder / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], lines, ended.stderr


def test_a_snapshot_that_fails_on_one_rank_is_dropped_on_all(tmp_path):
    (first, second), lines, _ = told_by(
        tmp_path,
        """
saved = {}
def save(step):
    if rank == 1 and step == 4:
        raise OSError(28, "No space left on device")
    saved[step] = [p.detach().clone() for p in model.parameters()]
def load(step):
    with torch.no_grad():
        for p, value in zip(model.parameters(), saved[step]):
            p.copy_(value)
g = guard(snapshot_every=2, save=save, load=load)
for i in range(5):
    g.step(x)
told["steps"] = g._rollback._steps
spoil()
told["snapshot"] = g.step(x).event.snapshot
told["applied"] = g.step(x).applied
""",
    )
    assert first == second == {"steps": [0, 2], "snapshot": 2, "applied": True}
    refused = [line for line in lines if line["kind"] == "no_snapshot"]
    assert [(line["step"], line["reason"]) for line in refused] == [
        (4, "OSError: [Errno 28] No space left on device (rank 1)")
    ]


@pytest.mark.parametrize("lost", ["[4]", "[2, 4]"])
def test_a_run_resumes_from_what_every_rank_has(lost, tmp_path):
    (first, second), _, stderr = told_by(
        tmp_path,
        f"""
options = dict(snapshot_every=2, snapshot_folder=folder / str(rank))
g = guard(**options)
for i in range(5):
    g.step(x)
if rank == 1:
    for step_ in {lost}:
        shutil.rmtree(folder / "1" / f"rank-1-step-{{step_:08d}}")
dist.barrier()
g = guard(**options)
told["resumed"] = g.resume()
for i in range(3):
    assert g.step(x).applied
told["steps"] = g._rollback._steps
told["files"] = sorted(int(p.name[-8:]) for p in (folder / str(rank)).iterdir())
""",
    )
    assert first == second
    assert first["resumed"] == (2 if lost == "[4]" else None)
    assert first["files"] == first["steps"]
    gone = "rank 1 has none of step 4" if lost == "[4]" else "rank 1 has none of step 2, 4"
    assert stderr.count(f"snapshots are missing: {gone}. The run") == 2  # on every rank


def test_a_damaged_snapshot_on_one_rank_takes_all_to_an_older_one(tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        """
g = guard(snapshot_every=2, snapshot_folder=folder / str(rank))
for i in range(5):
    g.step(x)
if rank == 1:
    next((folder / "1" / "rank-1-step-00000004").glob("*.safetensors")).write_bytes(b"")
spoil()
told["snapshot"] = g.step(x).event.snapshot
told["weights"] = [p.sum().item() for p in model.parameters()]
""",
    )
    assert first == second
    assert first["snapshot"] == 2


def test_no_snapshot_that_can_be_restored_stops_all(tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        """
def load(step):
    if rank == 1:
        raise OSError("gone")
g = guard(snapshot_every=2, save=lambda step: None, load=load)
g.step(x)
spoil()
try:
    g.step(x)
except TrainingStopped as stopped:
    told["stopped"] = "no snapshot can be restored: the one after step 0 failed: OSError: gone (rank 1)" in str(stopped)
""",
    )
    assert first == second == {"stopped": True}


def test_leftovers_on_one_rank_are_refused_by_all(tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        """
if rank == 1:
    (folder / "1" / "rank-1-step-00000004").mkdir(parents=True)
try:
    guard(snapshot_every=2, snapshot_folder=folder / str(rank)).step(x)
except OptionError as error:
    told["error"] = str(error)
""",
    )
    assert first == second
    assert first["error"].startswith("snapshot_folder has snapshots of an earlier run, up to step 4")
    assert first["error"].endswith("(rank 1)")


def test_policies_that_differ_are_refused_by_all(tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        """
try:
    guard(snapshot_every=2 + rank).step(x)
except OptionError as error:
    told["error"] = str(error)
""",
    )
    assert first["error"].startswith("the ranks have different policies: on rank 0, snapshot_every=2.")
    assert second["error"].startswith("the ranks have different policies: on rank 1, snapshot_every=3.")


@pytest.mark.parametrize("returned", ['"raise" if rank else None', '"stop" if rank else None'])
def test_a_callback_of_one_rank_is_one_of_all(returned, tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        f"""
try:
    guard(on_instability=(lambda event: {returned}) if rank else None).step(bad)
except (TrainingStopped, OptionError) as error:
    told["error"] = [type(error).__name__, str(error)[:30]]
""",
    )
    assert first == second
    assert first["error"][0] == ("OptionError" if "stop" in returned else "TrainingStopped")


@pytest.mark.parametrize("options", ["", "out_of_memory='split'"])
def test_a_step_function_that_fails_when_it_runs_again_on_one_rank_is_replayed_on_none(options, tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        f"""
runs = []
def once(m, x):
    runs.append(None)
    loss = m(x).square().mean()
    if rank == 1 and len(runs) > 1:
        raise OSError("the stream has been read")
    return loss
g = guard(once, {options})
event = g.step(bad).event
told["verdict"] = event.verdict
told["action"] = event.action
note = "another rank cannot run it again" if rank == 0 else "it raised OSError when run again: the stream has been read"
told["note"] = f"not replayed: {{note}}" in event.notes
runs.clear()
told["applied"] = g.step(x).applied
""",
    )
    assert first == second == {"verdict": None, "action": "skip", "note": True, "applied": True}


def test_captures_that_cannot_be_counted_or_written_on_one_rank(tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        """
g = guard(captures=folder / str(rank))
if rank == 1:
    (folder / "1").rmdir()
    (folder / "1").write_text("a file in its place")
told["event"] = g.step(bad).event.action
told["applied"] = g.step(x).applied
""",
    )
    assert first == second == {"event": "skip", "applied": True}


def test_a_rank_without_gradients_sums_norms_with_the_others(tmp_path):
    """Of shards, all ranks sum the norms, also one whose gradients are gone: it ran out of memory."""
    (first, second), _, _ = told_by(
        tmp_path,
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Shard
mesh = init_device_mesh("cpu", (2,))
model = nn.Linear(4, 4, bias=False)
model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(m, x):
    if rank == 1 and tight:
        raise torch.OutOfMemoryError("no room")
    return m.weight.to_local().square().mean()
tight = True
g = guard(step)
try:
    g.step(x)
except TrainingStopped as stopped:
    told["reason"] = stopped.reason
tight = False
told["applied"] = g.step(x).applied
""",
    )
    assert first == second == {"reason": "out_of_memory", "applied": True}


def test_an_error_while_weights_are_compared_on_one_rank_compares_none(tmp_path):
    (first, second), _, _ = told_by(
        tmp_path,
        """
g = guard(snapshot_every=1)
if rank == 1:
    model.module.register_parameter("odd", nn.Parameter(torch.zeros(2, device="meta"), requires_grad=False))
told["applied"] = [g.step(x).applied for _ in range(3)]
""",
    )
    assert first == second == {"applied": [True] * 3}


@pytest.mark.parametrize("failing", [0, 1])
def test_an_observer_that_fails_on_one_rank_leaves_the_decision_to_the_others(failing, tmp_path):
    """Its rank has seen no instability; the action for what another has seen is taken by both."""
    (first, second), lines, _ = told_by(
        tmp_path,
        f"""
from torchnan.training.guard.step_observer import ObservedInstability, StepMonitor, StepObserver

class Seeing(StepObserver):
    def new_instabilities(self):
        if rank == {failing}:
            raise ValueError("no rows")
        return [ObservedInstability("spike", "the loss jumps")]

class Monitor(StepMonitor):
    finds_instabilities = True
    def make_observer(self, training, failures):
        return Seeing()

g = guard(monitor=Monitor(), instability={{"spike": "skip"}})
result = g.step(x)
told["applied"], told["rank"] = result.applied, result.event.rank
told["failures"] = g.failures
told["then"] = g.step(x).event.what
""",
    )
    seeing = 1 - failing
    for rank, told in enumerate((first, second)):
        assert (told["applied"], told["rank"], told["then"]) == (False, seeing, "instability")
        assert told["failures"] == ({"looking for instabilities": 1} if rank == failing else {})
    assert [line["seen"] for line in lines if line["kind"] == "step"][:1] == ["the loss jumps"]
