"""torch.compile with every backend: a healthy graph is silent, and nothing breaks inside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return (self.fc(x).tanh() + 2).log().mean()


def train(model, x):
    for _ in range(2):
        model.zero_grad()
        model(x).backward()


@pytest.mark.breadth(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_healthy_compiled_step_is_silent_and_the_same(backend):
    x = torch.randn(3, 4)
    plain, watched = Net(), Net()
    watched.load_state_dict(plain.state_dict())
    train(torch.compile(plain, backend=backend), x)
    with torchnan.detect() as watch:
        train(torch.compile(watched, backend=backend, fullgraph=True), x)
    assert watch.findings == []
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_nonfinite_values_of_a_compiled_step_are_found(backend):
    def compute(x, w):
        return ((x @ w) * 0 - 1).log().sum()

    compiled = torch.compile(compute, backend=backend)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        compiled(x, w).item()
        compiled(x, w).backward()
    assert watch.first is not None
    assert watch.first.kind == "nan"
    assert (watch.first.op, watch.first.origin) == ("aten::log", "op")


def test_a_guard_inside_a_compiled_graph_keeps_its_name():
    def compute(x):
        return torchnan.guard((x * 0).log(), "logits").sum()

    compiled = torch.compile(compute, fullgraph=True)
    with torchnan.detect(action="log") as watch:
        compiled(torch.ones(3))
    assert watch.first.harm.kind == "guard"
    assert watch.first.harm.name == "logits"


def test_a_compiled_optimizer_runs():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(optimizer.step, backend="aot_eager")
    with torchnan.detect() as watch:
        model(torch.randn(2, 4)).backward()
        step()
    assert watch.findings == []


def test_an_input_that_a_compiled_graph_overwrites_loses_its_old_bound():
    @torch.compile
    def wreck(x):
        x.mul_(float("inf")).sub_(x)
        return x.shape[0]

    wreck(torch.ones(5000))  # compiled before any session exists
    with torchnan.detect(action="log") as watch:
        x = torch.ones(5000) * 2
        _ = x * 3  # known, and used
        wreck(x)
        _ = (x * 5).sum().item()
    assert [finding.op for finding in watch.findings] == ["aten::sub_"]
