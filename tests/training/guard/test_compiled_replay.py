"""The replay of a bad step of a compiled model: the same code first, and then the model without the compiler."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import torchnan


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        h = self.drop(torch.relu(self.fc(x)))
        return torch.log(h * x.abs().sum()).mean()  # BUG


class Rounding(nn.Module):
    """Vectorised code rounds sin² + cos² otherwise than eager code: only there is one minus it below zero."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x):
        y = x * self.w
        s, c = torch.sin(y), torch.cos(y)
        return torch.sqrt(1.0000001 - (s * s + c * c)).sum()  # BUG


def guarded(model, batches, **options):
    """The events of a training under a guard."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.compile()
    guard = torchnan.StepGuard(model, optimizer, lambda model, batch: model(batch), **options)
    for batch in batches:
        guard.step(batch)
    return guard.events


def test_the_origin_is_named_with_the_bits_of_the_compiled_step(tmp_path):
    torch.manual_seed(0)
    (event,) = guarded(Logarithm(), [torch.zeros(8, 4)], captures=str(tmp_path / "captures"))
    assert (event.verdict, event.same_bits, event.cause) == ("persistent", True, "operation")
    assert (event.finding.op, event.finding.line) == ("aten::log", line_of(Logarithm))
    assert event.finding.compiled.region == "forward"
    assert event.finite_in_eager is False
    assert "eager     not finite without torch.compile either: the compiler is not the cause" in str(event)

    model = Logarithm()
    model.compile()
    replayed = torchnan.load_capture(event.capture).replay(model, lambda model, batch: model(batch))
    assert (replayed.verdict, replayed.same_bits, replayed.finite_in_eager) == ("persistent", True, False)
    assert replayed.finding.compiled.region == "forward"


def test_errors_of_the_compiler_are_distinguished():
    x = torch.rand(400_000) * 1000
    with torch.no_grad():
        is_above_zero = 1.0000001 - (torch.sin(x) ** 2 + torch.cos(x) ** 2) > 0
    (event,) = guarded(Rounding(), [x[is_above_zero][:200_000].contiguous()])
    assert (event.verdict, event.same_bits) == ("persistent", True)
    assert (event.finding.op, event.finding.compiled.replay) == ("aten::sqrt", "fused")
    assert event.finite_in_eager is True
    assert "finite without torch.compile: the cause is the arithmetic of compiled code" in str(event)


def test_a_model_that_is_not_compiled_is_not_run_again_for_that():
    model = Logarithm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = torchnan.StepGuard(model, optimizer, lambda model, batch: model(batch))
    event = guard.step(torch.zeros(8, 4)).event
    assert (event.verdict, event.finite_in_eager) == ("persistent", None)


def line_of(kind):
    lines, first = inspect.getsourcelines(kind)
    return next(first + i for i, text in enumerate(lines) if text.rstrip().endswith("# BUG"))
