"""A NaN that leaves PyTorch in a number, a list or an array, and comes back: the later report refers to the read."""

from __future__ import annotations

import re

import pytest
import torch

import torchnan

LINK = r"user code had read a NaN at \S*test_nan_that_comes_back\.py:\d+, which aten::div had made at \S*:\d+"


def nan():
    return torch.zeros(()) / torch.zeros(())


def in_a_list():
    w = torch.ones(2, requires_grad=True)
    (w * torch.tensor([1.0, nan().item()])).sum().backward()
    return w


def in_an_array():
    w = torch.ones(2, requires_grad=True)
    (w * torch.from_numpy(nan().expand(2).clone().numpy() * 2)).sum().backward()
    return w


def as_a_step_size():
    net = torch.nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    step = nan().item()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(p.grad, alpha=-step)
    return net


def as_a_learning_rate():
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.param_groups[0]["lr"] *= nan().item()
    optimizer.step()
    return net


@pytest.mark.parametrize("way", [in_a_list, in_an_array, as_a_step_size, as_a_learning_rate])
def test_the_later_report_refers_to_the_read(way):
    with torchnan.detect(action="log") as watch:
        kept = way()
    assert kept is not None
    first, later = (finding for finding in watch.findings if finding.level == "error")
    assert (first.op, first.harm.kind) == ("aten::div", "read")
    assert later.hint is not None
    assert re.search(LINK, later.hint), later.hint


def test_a_nan_that_was_there_before_the_read_is_not_linked():
    with torchnan.detect(action="log") as watch:
        data = torch.tensor([1.0, float("nan")])
        nan().item()
        data.sum().item()
    assert [finding.origin for finding in watch.findings] == ["op", "input"]
    assert "had read" not in (watch.findings[1].hint or "")
