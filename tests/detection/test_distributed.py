"""Two processes over gloo, started as users start them: by torchrun."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.processes import run

PREAMBLE = """
import json, os, sys
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
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, x):
        h = self.a(x).relu()
        if planted and rank == 1:
            h = h + (h * 0 - 1).log()  # PLANTED
        return self.b(h).square().mean()
"""

MACHINES = {
    "ddp": """
model = nn.parallel.DistributedDataParallel(Net())
""",
    "fully_shard": """
from torch.distributed.fsdp import fully_shard
model = Net()
fully_shard(model.a); fully_shard(model.b); fully_shard(model)
""",
    "dtensor": """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (world,))
model = parallelize_module(Net(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
""",
}

STEPS = """
optimizer = torch.optim.AdamW(model.parameters())
with torchnan.detect(action="log") as watch:
    for _ in range(3):
        loss = model(torch.randn(5, 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
first = watch.first
TOLD = ("op", "rank", "module", "line", "origin", "hint")
result = dict(
    rank=rank,
    first=None if first is None else {name: getattr(first, name) for name in TOLD},
    internal_errors=watch.stats()["internal_errors"],
    ops=watch.stats()["ops"],
)
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(result, file)
# PyTorch 2.13 aborts now and then, torchnan or not, if gloo's thread is the one to let go of a Python object at exit.
import gc
del model, optimizer, loss
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


BROUGHT = {"ddp": "allreduce_", "dtensor": "all_reduce", "fully_shard": "_reduce_scatter_base_"}


def run_machine(name, folder, mode):
    script = folder / "train.py"
    script.write_text(PREAMBLE + MACHINES[name] + STEPS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run([*launch, str(script), str(folder), mode], OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    line = next(i for i, text in enumerate(script.read_text().splitlines(), 1) if "# PLANTED" in text)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], line


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", MACHINES)
def test_a_healthy_run_is_silent_on_every_rank(name, tmp_path):
    results, _ = run_machine(name, tmp_path, "healthy")
    for result in results:
        assert result["first"] is None
        assert result["internal_errors"] == 0
        assert result["ops"] > 20


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", MACHINES)
def test_the_rank_that_made_it_names_the_operation(name, tmp_path):
    results, line = run_machine(name, tmp_path, "planted")
    guilty = results[1]["first"]
    assert guilty is not None
    assert (guilty["op"], guilty["rank"], guilty["line"]) == ("aten::log", 1, line)


@pytest.mark.breadth(1)
@pytest.mark.parametrize(("name", "collective"), BROUGHT.items())
def test_another_rank_reports_that_it_was_received(name, collective, tmp_path):
    """By gloo's own copy, or by the one that is waited for."""
    told = run_machine(name, tmp_path, "planted")[0][0]["first"]
    assert (told["origin"], told["rank"]) == ("input", 0)
    assert told["hint"] == f"{collective} received it from another rank: see the report of that rank for its origin"
