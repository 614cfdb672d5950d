"""Faults in programs of two ranks over gloo, each planted on one rank; the expected report of each rank."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from tests.support.processes import run

PREAMBLE = """
import gc, json, sys
import torch, torch.distributed as dist
from torch import nn
import torchnan
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
planted = sys.argv[2] == "planted"

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        return self.b(self.a(x).relu())

def train(model, steps=2, large=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        scale = 3e4 if large and planted and rank == 1 and step == 1 else 1.0
        (model(torch.randn(4, 8)) * scale).square().mean().backward()
        optimizer.step()
"""

ENDING = """
first = watch.first or next(iter(watch.findings), None)
told = None if first is None else dict(
    origin=first.origin, op=first.op.rpartition("::")[2], line=first.line, phase=first.phase, name=first.name,
    collective=(first.collective or "").rpartition("::")[2],
)
result = dict(first=told, internal_errors=watch.stats()["internal_errors"])
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(result, file)
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""

Told = dict[str, Any]


class Program(NamedTuple):
    text: str
    told: tuple[Told, Told]  # by rank 0 and rank 1


def received(by: str) -> Told:
    return {"collective": by}


def made(op: str, **more: Any) -> Told:
    return {"origin": "op", "op": op, "collective": "", **more}


PROGRAMS = {
    "a sum that overflows": Program(
        """
with torchnan.detect(action="log") as watch:
    gradient = torch.full((8,), 40000.0 if planted else 1.0).half()
    dist.all_reduce(gradient)  # PLANTED
    held = gradient.float() / world
""",
        (made("allreduce_", line=True), made("allreduce_", line=True)),
    ),
    "a sum that overflows and that nothing reads": Program(
        """
with torchnan.detect(action="log") as watch:
    gradient = torch.full((8,), 40000.0 if planted else 1.0).half()
    dist.all_reduce(gradient, async_op=True).wait()  # PLANTED
""",
        (made("allreduce_", line=True), made("allreduce_", line=True)),
    ),
    "gathered with autograd": Program(
        """
import torch.distributed.nn.functional as DF
net = Net()
with torchnan.detect(action="log") as watch:
    features = net(torch.randn(4, 8))
    if planted and rank == 1:
        features = features + (features * 0 - 1).log()  # PLANTED
    every = torch.cat(DF.all_gather(features))
    (every @ every.T).logsumexp(1).mean().backward()
""",
        (received("allgather_"), made("log", line=True)),
    ),
    "sent from rank to rank": Program(
        """
with torchnan.detect(action="log") as watch:
    if rank == 1:
        sent = torch.ones(4)
        if planted:
            sent = (sent - 2).log()  # PLANTED
        dist.send(sent, 0)
    else:
        buffer = torch.empty(4)
        dist.recv(buffer, 1)
        (buffer * 2).sum().item()
""",
        (received("recv_"), made("log", line=True)),
    ),
    "a cast in a communication hook": Program(
        """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model = nn.parallel.DistributedDataParallel(Net())
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
with torchnan.detect(action="log") as watch:
    train(model, large=True)
""",
        (received("allreduce_"), made("_to_copy", phase="backward", name="b.bias")),
    ),
    "the callback of a future": Program(
        """
model = nn.parallel.DistributedDataParallel(Net())
def hook(state, bucket):
    def average(future):
        total = future.value()[0]
        return total / (total * 0 if planted else world)  # PLANTED
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(average)
model.register_comm_hook(None, hook)
with torchnan.detect(action="log") as watch:
    train(model)
""",
        (made("div", line=True, phase="backward"), made("div", line=True, phase="backward")),
    ),
    "a checkpoint in shards": Program(
        """
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
model = Net()
state = {key: value.clone() for key, value in model.state_dict().items()}
if planted:
    state["b.weight"][7, 3] = float("nan")
fully_shard(model.a); fully_shard(model.b); fully_shard(model)
set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
with torchnan.detect(action="log") as watch:
    train(model)
""",
        (received("_allgather_base_"), {"origin": "parameter", "name": "b.weight"}),
    ),
    "weights that DDP sends": Program(
        """
net = Net()
if planted and rank == 0:
    with torch.no_grad():
        net.b.weight[1, 1] = float("nan")
with torchnan.detect(action="log") as watch:
    train(nn.parallel.DistributedDataParallel(net))
""",
        ({"origin": "parameter", "name": "b.weight"}, {"origin": "parameter", "name": "b.weight"}),
    ),
    "gradients that FSDP reduces in float16": Program(
        """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
model = Net()
fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
with torchnan.detect(action="log") as watch:
    train(model, large=True)
""",
        (received("_reduce_scatter_base_"), made("chunk_cat", phase="backward")),
    ),
}


def results_of(program: Program, folder, mode):
    script = folder / "train.py"
    script.write_text(PREAMBLE + program.text + ENDING)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run([*launch, str(script), str(folder), mode], OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    line = next((i for i, text in enumerate(script.read_text().splitlines(), 1) if "# PLANTED" in text), None)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], line


@pytest.mark.breadth(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_rank_names_the_fault(name, tmp_path):
    results, line = results_of(PROGRAMS[name], tmp_path, "planted")
    for result, told in zip(results, PROGRAMS[name].told, strict=True):
        assert result["internal_errors"] == 0
        assert result["first"] is not None
        wanted = {key: line if value is True else value for key, value in told.items()}
        assert {key: result["first"][key] for key in wanted} == wanted


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_fault_each_rank_is_silent(name, tmp_path):
    results, _ = results_of(PROGRAMS[name], tmp_path, "healthy")
    assert results == [{"first": None, "internal_errors": 0}] * 2
