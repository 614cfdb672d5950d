"""Compiled regions with distributed tensors: followed on each rank alone."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torchnan
from tests.support.simulated_ranks import simulated_ranks
from torchnan.detection.compiled.random_numbers import AsGenerated


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def two_ranks():
    with simulated_ranks() as mesh:
        yield mesh


def eagerly(function):
    return function


COMPILERS = pytest.mark.parametrize("compiler", [eagerly, torch.compile])


@COMPILERS
@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=str)
def test_the_origin_of_a_distributed_loss_is_named(compiler, placement, one_rank):
    w = nn.Parameter(distribute_tensor(torch.zeros(4), one_rank, [placement]))
    loss_of = compiler(lambda w: torch.log(w * 2).sum())
    with torchnan.detect(action="log") as session:
        loss_of(w).backward()
    assert session.stats()["internal_errors"] == 0
    assert (session.first.op, session.first.kind, session.first.harm.kind) == ("aten::log", "inf", "backward")


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(torch.log(self.first(x) * 0))


@COMPILERS
def test_collectives_of_one_rank_are_run_again(compiler, one_rank):
    model = parallelize_module(Pair(), one_rank, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    with torchnan.detect(action="log") as session:
        compiler(model)(torch.ones(2, 4)).sum().backward()
    assert (session.first.op, session.first.kind, session.first.module) == ("aten::log", "inf", "")


def test_the_origin_of_a_distributed_loss_of_several_ranks_is_named(two_ranks):
    w = nn.Parameter(distribute_tensor(torch.zeros(4), two_ranks, [Replicate()]))
    with torchnan.detect(action="log") as session:
        torch.compile(lambda w: torch.log(w * 2).sum())(w).backward()
    assert (session.first.op, session.first.harm.kind) == ("aten::log", "backward")
    assert session.first.compiled.replay == "traced"


def test_a_distributed_tensor_draws_its_own_random_numbers(one_rank):
    x = distribute_tensor(torch.zeros(4), one_rank, [Replicate()])
    torch.manual_seed(0)
    expected = torch.rand_like(x)
    torch.manual_seed(0)
    with AsGenerated({}):
        drawn = torch.rand_like(x)
    assert torch.equal(drawn.to_local(), expected.to_local())


def test_a_fake_tensor_draws_fake_random_numbers():
    with FakeTensorMode():
        x = torch.zeros(4)
    with AsGenerated({}):
        assert type(torch.rand_like(x)) is type(x)
