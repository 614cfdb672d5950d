"""Ranks over gloo: whichever of them is bad, and whatever it sees, all do the same."""

from __future__ import annotations

import itertools
import json
import sys

import pytest

from tests.support.forked_python import run_forked_ranks
from tests.support.processes import run

PROGRAM = """
import gc, json, sys
import torch, torch.distributed as dist
from torch import nn
import torchnan
from torchnan.distributed.agreement import AgreementError

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
folder, kind = sys.argv[1], sys.argv[2]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        self.seen += 1
        h = self.a(x).relu()
        if trouble == "loss":
            h = h + (h * 0 - 1).log()  # PLANTED
        if trouble == "gradient":
            h.register_hook(lambda g: g * float("inf"))
        if trouble == "norm":
            h = h * 1e4
        if trouble == "memory" and len(x) > 4:
            raise torch.OutOfMemoryError("no room")
        return self.b(h).square().mean()

def built():
    torch.manual_seed(0)
    net = Net()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(net)
    from torch.distributed.fsdp import fully_shard
    fully_shard(net.a); fully_shard(net.b); fully_shard(net)
    return net

def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

model = built()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
split = {"out_of_memory": "split"} if kind == "ddp" else {}
guard = torchnan.StepGuard(
    model, optimizer, lambda m, x: m(x), snapshot_every=1, captures=f"{folder}/captures", max_captures=100,
    log=f"{folder}/log.jsonl", max_skips=1000, max_consecutive=1000, max_rollbacks=1000, norm_limit=1e4,
    try_remedies=True, **split)
told = []
plan = json.loads(sys.argv[3])
for i, troubles in enumerate(plan):
    trouble = troubles[rank]
    before = [local(p).clone() for p in model.parameters()]
    torch.manual_seed(100 * i + rank)
    if trouble in ("weight", "finite weight"):
        with torch.no_grad():
            local(next(model.parameters())).view(-1)[0] = float("inf") if trouble == "weight" else 0.5
    result = guard.step(torch.randn(8, 4))
    event = result.event
    told.append(dict(
        applied=result.applied,
        norm=result.norm,
        same=all(torch.equal(a, local(p)) for a, p in zip(before, model.parameters())),
        event=None if event is None else dict(
            what=event.what, rank=event.rank, cause=event.cause, action=event.action, verdict=event.verdict,
            seen=event.seen, origin=event.origin, mine=None if event.finding is None else event.finding.op,
            capture=event.capture, notes=event.notes),
        events=len(guard.events),
        lr=guard._update.lr_cut.factor,
        step=guard.step_number))
weights = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(dict(told=told, weights=[w.sum().item() for w in weights]), file)
# PyTorch 2.13 aborts now and then, torchnan or not, if gloo's thread is the one to let go of a Python object at exit.
del model, optimizer, guard, weights, before
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


def ranks(folder, world, kind, plan):
    """Runs the plan: for each step, what goes wrong on each rank. Returns what each rank has said of each step."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    ended = run_forked_ranks(program, world, str(folder), kind, json.dumps(plan))
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def alike(results, *fields):
    """The report of every rank, which must be the same."""
    said = [[tuple((step["event"] or {}).get(f, step.get(f)) for f in fields) for step in r["told"]] for r in results]
    assert all(one == said[0] for one in said), said
    return said[0]


# The earliest anomaly of a step is reported; if several ranks have it, that of the lowest.
def expected(troubles, kind):
    order = ["memory", "loss", "gradient"]
    worst = min((order.index(t), rank) for rank, t in enumerate(troubles) if t)
    return order[worst[0]], worst[1]


@pytest.mark.breadth(1)
@pytest.mark.parametrize("kind", ["ddp", "fully_shard"])
@pytest.mark.parametrize(("world", "at_once"), [(2, 2), pytest.param(4, 4, marks=pytest.mark.slow)], ids=["2", "4"])
def test_every_combination_of_ranks_and_anomalies(world, at_once, kind, tmp_path):
    combinations = itertools.product([None, "loss", "gradient"], repeat=world)
    plan = [troubles for troubles in combinations if any(troubles)]
    plan = [troubles for troubles in plan if sum(map(bool, troubles)) <= at_once]
    results = ranks(tmp_path, world, kind, [*plan, [None] * world])
    said = alike(results, "what", "rank", "action", "applied", "cause", "verdict", "step", "origin")
    for troubles, (what, rank, action, applied, cause, verdict, _, origin) in zip(plan, said, strict=False):
        assert not applied
        assert verdict == "persistent"
        worst, where = expected(troubles, kind)
        assert what == worst, troubles
        if what == "loss":
            assert rank == where, troubles
            assert "aten::log" in origin
        assert cause == "operation"
        assert action in ("skip", "rollback")
    assert said[-1][3]  # the last one is good
    for result in results:
        notes = result["told"][0]["event"]["notes"]
        assert "no remedy was tried: the ranks would have to try the same" in notes
    assert results[0]["weights"] == results[1]["weights"]
    for result in results:
        assert all(step["same"] for step in result["told"][:-1] if step["event"]["action"] == "skip")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["rank"] for line in lines if line["kind"] == "step"] == [said_[1] for said_ in said[:-1]]


@pytest.mark.breadth(1)
@pytest.mark.parametrize("kind", ["ddp", "fully_shard"])
def test_a_weight_gone_bad_on_one_rank_takes_all_back(kind, tmp_path):
    plan = [[None, None], [None, None], [None, "weight"], [None, None]]
    results = ranks(tmp_path, 2, kind, plan)
    said = alike(results, "cause", "action", "applied", "step", "lr")
    assert said[2] == ("model", "rollback", False, 2, 0.5)
    assert said[3][2]
    assert results[0]["weights"] == results[1]["weights"]


def test_a_weight_that_differs_and_is_finite_takes_all_back_with_the_next_snapshot(tmp_path):
    results = ranks(tmp_path, 2, "ddp", [[None, None], [None, "finite weight"], [None, None]])
    said = alike(results, "what", "cause", "action", "applied", "step")
    assert said[1] == ("replicas", "model", "rollback", True, 1)
    assert said[2][-2:] == (True, 2)
    assert results[0]["weights"] == results[1]["weights"]


@pytest.mark.breadth(1)
@pytest.mark.parametrize("kind", ["ddp", "fully_shard"])
def test_a_spike_of_the_norm_is_one_of_all_ranks(kind, tmp_path):
    """Fails where ranks do not agree on one that all see: each says that it was the one that saw it."""
    results = ranks(tmp_path, 2, kind, [[None, "norm"], [None, None]])
    spike, good = alike(results, "what", "rank", "cause", "action", "applied", "norm")
    assert spike[:-1] == ("norm", 0, "norm", "skip", False)
    assert spike[-1] > 1e4
    assert good[-2]
    assert results[0]["weights"] == results[1]["weights"]


@pytest.mark.breadth(0)
def test_one_rank_without_memory_makes_all_split(tmp_path):
    results = ranks(tmp_path, 2, "ddp", [[None, None], [None, "memory"], ["memory", "memory"], [None, None]])
    said = alike(results, "applied", "events", "norm")
    assert [applied for applied, _, _ in said] == [True] * 4
    assert said[-1][1] == 2
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["what"], line["rank"], line["action"]) for line in lines if line["kind"] == "step"] == [
        ("out_of_memory", 1, "split"),
        ("out_of_memory", 0, "split"),
    ]
    assert results[0]["weights"] == results[1]["weights"]


DETECTORS = """
import itertools, json, math, sys
import torch, torch.distributed as dist
import torchnan
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
detector = torchnan.NaNDetector(max_consecutive=1000)
told = []
for step, bad in enumerate(itertools.product([False, True], repeat=world)):
    ok = detector.check_loss(math.nan if bad[rank] else 1.0, step)
    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.tensor([[math.inf if bad[rank] else 3.0, 4.0]])
    told.append([list(bad), ok, detector.check_gradients(model, step), list(detector.bad_parameters)])
limited = torchnan.NaNDetector(norm_limit=10.0)
spikes = []
for step, large in enumerate(itertools.product([False, True], repeat=world)):
    model.weight.grad = torch.tensor([[30.0 if large[rank] else 3.0, 4.0]])
    spikes.append([any(large), limited.check_gradients(model, step)])
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(dict(told=told, spikes=spikes, state=detector.state_dict()), file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.breadth(1)
@pytest.mark.parametrize("world", [2, 4])
def test_detectors_agree(world, tmp_path):
    program = tmp_path / "detect.py"
    program.write_text(DETECTORS)
    ended = run_forked_ranks(program, world, str(tmp_path))
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world)]
    for rank, result in enumerate(results):
        assert result["state"] == results[0]["state"]
        for bad, loss_ok, gradients_ok, names in result["told"]:
            assert loss_ok is gradients_ok is not any(bad)
            assert names == (["weight"] if bad[rank] else [])
        assert [ok for _, ok in result["spikes"]] == [not anywhere for anywhere, _ in result["spikes"]]
    assert "detected on another rank, rank 1" in ended.stderr


DYING = """
import datetime, os, sys
import torch, torch.distributed as dist
import torchnan
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
detector = torchnan.NaNDetector()
detector.check_loss(1.0, 1)
if dist.get_rank() == 1:
    os._exit(0)
try:
    detector.check_loss(1.0, 2)
except torchnan.distributed.agreement.AgreementError as error:
    print("SAID", error)
    os._exit(0)
"""


def test_a_rank_that_has_died_is_reported(tmp_path):
    program = tmp_path / "die.py"
    program.write_text(DYING)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run([*launch, str(program)], OMP_NUM_THREADS="1")
    assert "SAID torchnan: the ranks could not agree on this step: a rank has died, hangs" in ended.stdout
    assert "This is rank 0 of 2" in ended.stdout


NORMS = """
import gc, json, sys
import torch, torch.distributed as dist
from torch import nn
import torchnan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.LayerNorm(2))
kind = sys.argv[2]
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif kind == "fully_shard":
    fully_shard(model[0]); fully_shard(model)
elif kind == "replicated shards":
    fully_shard(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))
else:
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
torch.manual_seed(7 if kind == "dtensor" else rank)
model(torch.randn(5, 4)).square().mean().backward()
whole = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
truth = torch.stack([g.double().norm() for g in whole]).norm().item()
detector = torchnan.NaNDetector()
assert detector.check_gradients(model)
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump([truth, detector.gradient_norm], file)
del model, whole
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.breadth(2)
@pytest.mark.parametrize(
    ("kind", "world"), [("ddp", 2), ("fully_shard", 1), ("fully_shard", 2), ("replicated shards", 4), ("dtensor", 2)]
)
def test_the_norm_is_that_of_the_whole_gradient(kind, world, tmp_path):
    program = tmp_path / "norms.py"
    program.write_text(NORMS)
    ended = run_forked_ranks(program, world, str(tmp_path), kind)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for rank in range(world):
        truth, norm = json.loads((tmp_path / f"{rank}.json").read_text())
        assert norm == pytest.approx(truth, rel=1e-5)
