"""Collectives in compiled regions: the replay on one rank has the values that the region's own call received."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

import torchnan
from tests.support.rank_programs import Program, assert_fault_is_told, assert_is_silent, made, received
from tests.support.simulated_ranks import simulated_ranks
from torchnan.detection.compiled.received import AsReceived, UnknownCollectiveError

FUNCTIONAL = """
import torch.distributed._functional_collectives as functional
x = torch.ones(4, requires_grad=True)

@torch.compile
def loss_of(x):
    y = x * 2
    if rank == 1 and planted:
        y = torch.sqrt(y - 10)  # PLANTED
    total = functional.all_reduce(y, "sum", dist.group.WORLD)
    return (total * 3).sum()

with torchnan.detect(action="log") as watch:
    loss_of(x).backward()
"""

TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        h = self.up(x).relu()
        h = torch.log(h - (1e4 if planted and self.last else -1))  # PLANTED
        return self.down(h)

model = nn.Sequential(Block(), Block())
model[0].last, model[1].last = False, True
plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
plan = {f"{i}.{name}": style for i in range(2) for name, style in plan.items()}
model = torch.compile(parallelize_module(model, init_device_mesh("cpu", (2,)), plan))
with torchnan.detect(action="log") as watch:
    model(torch.ones(4, 8)).sum().backward()
assert len(watch.findings) <= 1, watch.findings
"""

GRADIENT = """
import torch.distributed._functional_collectives as functional
w = nn.Parameter(torch.ones(4))

@torch.compile
def loss_of(w):
    total = functional.all_reduce(w * 2, "sum", dist.group.WORLD)
    return torch.sqrt(total - total if planted else total).sum()  # PLANTED

with torchnan.detect(action="log") as watch:
    optimizer = torch.optim.SGD([w], lr=0.1)
    loss_of(w).backward()
    optimizer.step()
assert all(not finding.backward_stack for finding in watch.findings), watch.findings
"""

PROGRAMS = {
    "a NaN of another rank": Program(FUNCTIONAL, (received("all_reduce", origin="input"), made("sqrt", line=True))),
    "a model in parallel parts": Program(TENSOR_PARALLEL, (made("log", line=True), made("log", line=True))),
    "a gradient": Program(GRADIENT, (made("div", line=True, phase="backward"), made("div", line=True))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_rank_names_the_fault(name, tmp_path):
    assert_fault_is_told(PROGRAMS[name], tmp_path)


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_fault_each_rank_is_silent(name, tmp_path):
    assert_is_silent(PROGRAMS[name], tmp_path)


@pytest.fixture
def two_ranks():
    torch._dynamo.reset()
    with simulated_ranks() as mesh:
        yield mesh
    torch._dynamo.reset()


def reduced(x):
    return functional.all_reduce(x, "sum", dist.group.WORLD)


def finding_of(loss_of, x, **options):
    with torchnan.detect(action="log", **options) as session:
        torch.compile(loss_of)(x).item()
    assert session.stats()["internal_errors"] == 0
    return session.first


def test_generated_code_may_compute_in_the_memory_of_a_result(two_ranks):
    finding = finding_of(lambda x: torch.log(reduced(x * 2) - 2).sum(), torch.ones(4))
    assert (finding.op, finding.inputs[0].min, finding.compiled.replay) == ("aten::log", 0, "traced")


def test_a_sum_that_overflows_is_made_by_the_collective(two_ranks):
    group = dist.group.WORLD.group_name
    with torchnan.detect(action="log") as session:
        kept = [("_c10d_functional::all_reduce", group, torch.full((4,), torch.inf))]
        with AsReceived(kept):
            reduced(torch.full((4,), 3e38)).sum().item()
    assert session.first.op == "_c10d_functional::all_reduce"


def test_each_collective_has_its_own_value(two_ranks):
    def loss_of(x):
        first = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        second = functional.all_gather_tensor(x - 1, 0, dist.group.WORLD)
        third = functional.reduce_scatter_tensor(first + second, "sum", 0, dist.group.WORLD)
        return torch.log(second).sum() + third.sum()

    finding = finding_of(loss_of, torch.ones(4))
    assert (finding.op, finding.inputs[0].min, finding.inputs[0].max) == ("aten::log", 0, 0)


def test_a_region_that_receives_too_much_is_reported_at_its_border(two_ranks):
    finding = finding_of(lambda x: torch.log(reduced(x * 2) - 2).sum(), torch.ones(4), max_copied_bytes=15)
    assert finding.origin == "compiled"
    assert finding.compiled.obstacle == "its collectives bring 16 bytes, and max_copied_bytes=15"


def test_values_of_collectives_are_copied_up_to_the_limit(two_ranks):
    finding = finding_of(lambda x: torch.log(reduced(x * 2) - 2).sum(), torch.ones(4), max_copied_bytes=16)
    assert (finding.op, finding.compiled.replay) == ("aten::log", "traced")


def test_a_replay_leaves_nothing_to_wait_for(two_ranks):
    w = nn.Parameter(distribute_tensor(torch.zeros(4), two_ranks, [Shard(0)]))
    with torchnan.detect(action="log") as session:
        torch.compile(lambda w: torch.log(w).full_tensor())(w).sum().item()
    assert session.first.op == "aten::log"
    assert torch._C._distributed_c10d._get_work_registry_size() == 0


@pytest.mark.parametrize("collective", [dist.all_reduce, reduced], ids=["in place", "functional"])
def test_a_collective_that_the_region_has_not_run_fails(collective, two_ranks):
    with AsReceived([]), pytest.raises(UnknownCollectiveError):
        collective(torch.ones(4))


def test_only_a_value_that_fits_is_returned(two_ranks):
    group = dist.group.WORLD.group_name
    kept = [
        ("_c10d_functional::all_reduce_", group, torch.full((3,), 7.0)),
        ("_c10d_functional::all_reduce_", group, None),
    ]
    with AsReceived(kept):
        assert torch.ops._c10d_functional.all_reduce(torch.ones(3), "sum", group).tolist() == [7, 7, 7]
        with pytest.raises(UnknownCollectiveError):
            torch.ops._c10d_functional.all_reduce(torch.ones(3), "sum", group)
