"""Compiled regions on a device: results are scanned at the border, without a wait, and the report names the region."""

from __future__ import annotations

import pytest
import torch

import torchnan

pytestmark = pytest.mark.usefixtures("compiler")

GONE = "its inputs were gone when the device reported"


class Model(torch.nn.Module):
    """Takes the logarithm of what may be zero, between two products that library kernels compute."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x, scale):
        x = torch.log(torch.tanh(self.first(x)).square() * scale + 1e-3 * scale)
        return self.last(x).square().mean()


def training(device):
    """Returns a compiled model, and a function that trains it for a step with a factor."""
    torch.manual_seed(0)
    model = Model().to(device)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(16, 8).to(device)
    factors = {value: torch.tensor(value).to(device) for value in (0.0, 1.0)}

    def step(factor=1.0):
        optimizer.zero_grad()
        compiled(batch, factors[factor]).backward()
        optimizer.step()

    return model, step


def errors(watch):
    return [finding for finding in watch.findings if finding.level == "error"]


def facts_of(finding):
    return finding.origin, finding.op, finding.phase, finding.compiled.region, finding.compiled.obstacle


def test_a_healthy_compiled_training_is_waited_for_as_often_as_without(machine, device):
    _, step = training(device)
    step()
    plain = machine.count(step)
    with torchnan.detect(action="log") as watch:
        step()
        step()
        before = watch.stats()
        watched = machine.count(step)
        after = watch.stats()
    assert watched == plain
    assert watch.findings == []
    assert after["internal_errors"] == 0
    scanned = after["bytes"] - before["bytes"]
    loss_and_gradients = 4 * (1 + (64 + 8) + (8 + 1))
    assert loss_and_gradients <= scanned < 3 * loss_and_gradients  # a step of the optimizer scans the parameters
    assert machine.stale_reads() == 0


def test_the_region_that_made_a_value_is_named(device):
    _, step = training(device)
    with torchnan.detect(action="log") as watch:
        step()
        step(factor=0.0)
    found = watch.first
    assert facts_of(found) == ("compiled", "inductor::compiled_region", "forward", "forward", GONE)
    assert (found.compiled.file, found.compiled.line) == (__file__, Model.forward.__code__.co_firstlineno)
    assert (found.compiled.replay, found.compiled.kernel) == ("none", None)
    assert (found.harm.kind, found.step, found.device) == ("backward", 2, str(device))
    assert len(errors(watch)) == 1


def test_a_value_that_a_region_was_given_keeps_its_origin(device):
    compiled = torch.compile(lambda x, w: (x @ w).relu().sum())
    w = torch.randn(4, 4).to(device)
    zeros = torch.zeros(4, 4).to(device)
    with torchnan.detect(action="log") as watch:
        compiled(zeros / zeros, w).item()
    assert [(f.origin, f.op) for f in watch.findings] == [("op", "aten::div")]
    assert watch.first.lineage[0].op == "inductor::compiled_region"


def test_a_value_among_many_arguments_is_followed(device):
    compiled = torch.compile(lambda *tensors: [x + 1 for x in tensors])
    tensors = [torch.ones(4).to(device) for _ in range(30)]
    with torchnan.detect(action="log") as watch:
        tensors[20] = torch.log(tensors[20] * -1)
        results = compiled(*tensors)
        results[20].sum().item()
    assert [(f.origin, f.op) for f in watch.findings] == [("op", "aten::log")]


def test_a_bad_weight_is_named(device):
    model, step = training(device)
    with torchnan.detect(action="log") as watch:
        step()
        with torch.no_grad():
            model.last.weight.div_(0)
        step()
    assert watch.first.op == "aten::div_"
    assert {f.compiled for f in watch.findings} == {None}


def test_a_gradient_that_a_region_makes_is_one_of_its_backward_pass(device):
    @torch.compile
    def root(x):
        return torch.sqrt(x).sum()

    x = torch.zeros(4).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        loss = root(x)
        (loss * 0).backward()
        x.grad.sum().item()
    found = watch.first
    assert facts_of(found) == ("compiled", "inductor::compiled_region", "backward", "root", GONE)


def test_an_argument_that_a_region_overwrites_is_checked(device):
    @torch.compile
    def overwrite(x, y):
        x.div_(y)
        return y + 1

    x, y = torch.ones(4).to(device), torch.zeros(4).to(device)
    with torchnan.detect(action="log") as watch:
        overwrite(x, y)
        x.sum().item()
    assert facts_of(watch.first)[:4] == ("compiled", "inductor::compiled_region", "forward", "overwrite")


def test_an_error_is_raised_at_the_region_if_asked(device, machine):
    _, step = training(device)
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect(when="origin"):
            step(factor=0.0)
    assert raised.value.finding.compiled.region == "forward"


def test_a_value_that_was_there_before_detection_is_the_input(device):
    compiled = torch.compile(lambda x: x.relu().sum())
    x = torch.full((4,), float("nan")).to(device)
    with torchnan.detect(action="log") as watch:
        compiled(x).item()
    assert [(f.origin, f.compiled) for f in watch.findings] == [("input", None)]
