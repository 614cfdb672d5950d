"""What a report says of the cause beyond the operation: memory, numbers, modules, steps."""

from __future__ import annotations

import ctypes
import inspect

import pytest
import torch
from torch import nn

import torchnan


def first_of(program):
    with torchnan.detect(action="log") as watch:
        kept = program()
    assert kept is not None
    return watch.first


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("frequency", torch.ones(3), persistent=False)
        self.gain = nn.Parameter(torch.ones(3))


class ByBuffer(Scaled):
    def forward(self, x):
        return self.fc(x) * self.frequency


class ByParameter(Scaled):
    def forward(self, x):
        return self.fc(x) * self.gain


def materialized(model):
    """Returns a model whose memory nothing has written, except what a checkpoint has."""
    state = model().state_dict()
    state.pop("gain")
    with torch.device("meta"):
        net = model()
    net.to_empty(device="cpu")  # ALLOCATED
    for tensor in (net.frequency, net.gain):
        ctypes.memset(tensor.data_ptr(), 0xFF, tensor.nbytes)  # as memory may be that was used before
    net.load_state_dict(state, strict=False)
    return net


@pytest.mark.parametrize(("model", "name"), [(ByBuffer, "frequency"), (ByParameter, "gain")])
def test_memory_that_nothing_has_written_is_said_to_be_so(model, name):
    lines, first = inspect.getsourcelines(materialized)
    line = first + next(i for i, text in enumerate(lines) if text.endswith("# ALLOCATED\n"))
    finding = first_of(lambda: materialized(model)(torch.ones(1, 3)))
    assert finding.name == name
    told = f"nothing has written to this memory since empty_like allocated it (tests/detection/test_reasons.py:{line})"
    assert told in finding.hint, finding.hint


def difference_in_place():
    a = torch.tensor([0.0, -1.0]).masked_fill(torch.tensor([True, False]), -torch.inf)
    b = a.clone()
    a -= b
    return a.softmax(0)


def test_infinities_are_counted_that_the_operation_has_overwritten():
    finding = first_of(difference_in_place)
    assert (finding.op, finding.hint) == ("aten::sub_", "self and other hold infinities: inf - inf is NaN")
    assert "  -inf 1  (overwritten by the operation)" in str(finding)


def half_step(**options):
    net = nn.Linear(2, 2).half()
    optimizer = torch.optim.AdamW(net.parameters(), **options)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return net


@pytest.mark.parametrize("foreach", [False, True])
def test_an_eps_that_is_zero_in_half_precision_is_named(foreach):
    assert "an eps of 1e-08, as Adam has, is 0 in float16" in first_of(lambda: half_step(foreach=foreach)).hint


def step_with(**changed):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.param_groups[0].update(changed)
    optimizer.step()
    return net


def test_a_learning_rate_is_called_so():
    finding = first_of(lambda: step_with(lr=float("nan"), limit=float("inf")))
    assert finding.hint == "the learning rate is NaN, in parameter group 0"
    assert finding.inputs[0].name == "alpha"


def test_the_class_of_a_module_stands_beside_its_name():
    net = nn.Sequential(nn.Identity(), nn.Softmax(-1))
    finding = first_of(lambda: net(torch.full((1, 2), -torch.inf)).sum().item())
    assert (finding.module, finding.module_type) == ("1", "Softmax")
    assert "   in 1 (Softmax)   at " in str(finding)


def test_the_step_of_a_later_harm_is_named():
    def program():
        watch.mark_step(3)
        bad = torch.zeros(1).log()
        watch.mark_step(8)
        return bad.item()

    with torchnan.detect(action="log") as watch:
        assert program() == -torch.inf
    assert (watch.first.step, watch.first.harm.step) == (3, 8)
    assert "test_reasons.py:" in watch.first.harm.text
    assert "), at step 8\n" in str(watch.first)
