"""Backward passes that compiled autograd has traced: findings are those of the autograd engine's own pass."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import torchnan

pytestmark = pytest.mark.breadth(2)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x.abs())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.root = Root()

    def forward(self, x):
        return self.root(self.fc(x) * x).sum()


def one_loss(net, forward):
    forward(torch.zeros(2, 4)).backward()


def two_branches(net, forward):
    x = torch.zeros(2, 4)
    (net.fc(x).square().sum() + forward(x) + torch.exp(net.fc.weight).sum()).backward()


def two_roots(net, forward):
    x = torch.zeros(2, 4)
    torch.autograd.backward([net.fc(x).square().sum(), forward(x)])


def one_after_another(net, forward):
    forward(torch.ones(2, 4)).backward()
    forward(torch.zeros(2, 4)).backward()


PROGRAMS = [one_loss, two_branches, two_roots, one_after_another]


def finding_of(program, scope, compile_forward=False):
    torch.manual_seed(0)
    net = Net()
    forward = torch.compile(net) if compile_forward else net
    with torchnan.detect(action="log") as session:
        with scope:
            program(net, forward)
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert session.stats()["internal_errors"] == 0
    return session.first


def compiled_autograd():
    return torch._dynamo.compiled_autograd._enable(torch.compile)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_origin_is_that_of_the_engine(program):
    eager, traced = (finding_of(program, scope) for scope in (contextlib.nullcontext(), compiled_autograd()))
    assert (eager.op, eager.node, eager.module) == ("aten::div", "SqrtBackward0", "root")
    names = ("op", "node", "module", "file", "line", "phase", "hint")
    assert {name: getattr(traced, name) for name in names} == {name: getattr(eager, name) for name in names}
    assert [frame.line for frame in traced.stack] == [frame.line for frame in eager.stack]
    assert traced.compiled.region == "backward pass of compiled autograd"


def test_the_module_of_a_forward_pass_that_was_compiled_is_named():
    eager = finding_of(one_loss, contextlib.nullcontext())
    traced = finding_of(one_loss, compiled_autograd(), compile_forward=True)
    assert traced.module == "root"
    assert (traced.op, traced.line, traced.phase) == (eager.op, eager.line, eager.phase)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3)
        self.pool = GeneralizedMean()
        self.head = nn.Linear(3, 1)
        nn.init.zeros_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)

    def forward(self, x):
        return self.head(self.pool(self.conv(x))).sum()


class GeneralizedMean(nn.Module):
    def forward(self, x):
        return x.abs().pow(3).mean(-1).pow(1 / 3)


@pytest.mark.parametrize("when", ["harm", "origin"])
def test_a_slope_that_the_compiled_forward_pass_has_computed_is_named(when):
    net = Pooled()
    forward = torch.compile(net)
    with torchnan.detect(action="log", when=when) as session:
        for _ in range(2):
            with compiled_autograd():
                forward(torch.ones(2, 1, 9)).backward()
            torch.optim.SGD(net.parameters(), lr=0.0).step()
    assert session.stats()["internal_errors"] == 0
    finding = session.first
    assert (finding.origin, finding.op, finding.module) == ("op", "aten::pow", "pool")
    assert finding.line == GeneralizedMean.forward.__code__.co_firstlineno + 1
    assert finding.compiled.replay == "lowered"


def test_a_node_is_named_where_only_a_part_of_the_graph_is_asked_for():
    def program(net, forward):
        x = torch.zeros(2, 4, requires_grad=True)
        (net.fc.weight.grad,) = torch.autograd.grad(forward(x) + x.exp().sum(), [net.fc.weight])

    traced = finding_of(program, compiled_autograd())
    assert (traced.op, traced.node, traced.phase) == ("aten::div", "SqrtBackward0", "backward")
