"""The report of an Inf names the place where it becomes a NaN: it may be the one to repair."""

from __future__ import annotations

import inspect

import torch

import torchnan


def line_of(function, mark):
    """Returns the line of a function that ends with a comment."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith(mark))


def place(function, mark="# NAN"):
    return f"(tests/detection/test_inf_becomes_nan.py:{line_of(function, mark)})"


def found(function):
    with torchnan.detect(action="log") as watch:
        kept = function()
    assert kept is None
    return watch.first


def masked_by_multiplication():
    p = torch.zeros(3, requires_grad=True)
    keep = torch.tensor([1.0, 0.0, 1.0])
    ratio = torch.exp(p - torch.tensor([0.0, -120.0, 0.1]))
    loss = (keep * ratio).sum()  # NAN
    loss.backward()


def difference_of_infinities():
    h = torch.exp(torch.tensor([200.0, 0.0]))
    (h - h.max()).sum().item()  # NAN


def finite_loss_and_bad_weights():
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    raw = torch.atanh(torch.tensor([[0.3], [1.0]]).clamp(-1 + 1e-8, 1 - 1e-8))
    squared = (raw - net(torch.ones(2, 3))) ** 2  # NAN
    loss = -torch.clamp(-squared / 2, -100, 100).mean()
    assert loss.isfinite()
    loss.backward()
    optimizer.step()


def test_a_product_with_zero():
    finding = found(masked_by_multiplication)
    assert (finding.op, finding.kind) == ("aten::exp", "inf")
    assert finding.hint.endswith(f"mul made NaN of it {place(masked_by_multiplication)}")


def test_a_difference():
    finding = found(difference_of_infinities)
    assert finding.hint.endswith(f"sub made NaN of it {place(difference_of_infinities)}")


def test_a_node_of_the_backward_pass_is_named_with_the_line_of_its_forward_call():
    finding = found(finite_loss_and_bad_weights)
    assert (finding.op, finding.harm.kind) == ("aten::atanh", "gradient")
    assert finding.hint.endswith(f"mul in PowBackward0 made NaN of it {place(finite_loss_and_bad_weights)}")


def infinity():
    torch.exp(torch.tensor(200.0)).mul(2).item()


def test_nothing_is_said_of_an_infinity_that_stays_one():
    assert "made NaN" not in found(infinity).hint
