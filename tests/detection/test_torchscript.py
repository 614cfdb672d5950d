"""What TorchScript computes is reported with the line of the scripted code."""

from __future__ import annotations

import inspect

import pytest
import torch

import torchnan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def normalized(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    return x / total


def doubled(x: torch.Tensor) -> torch.Tensor:
    y = normalized(x)
    return y * 2


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def first_of(function):
    with torchnan.detect(action="log") as watch:
        held = function(torch.zeros(3))
    assert watch.first is not None
    del held
    return watch.first


@pytest.mark.parametrize("runs", [1, 3])  # the profiling executor rewrites the graph after the first
def test_the_line_is_that_of_the_scripted_code(runs):
    scripted = torch.jit.script(doubled)
    for _ in range(runs - 1):
        scripted(torch.ones(3))
    finding = first_of(scripted)
    assert (finding.op, finding.file) == ("aten::div", __file__)
    assert [frame.line for frame in finding.stack[:3]] == [
        line_of(normalized, "x / total"),
        line_of(doubled, "normalized(x)"),
        line_of(first_of, "function("),
    ]
    assert [frame.function for frame in finding.stack[:2]] == ["normalized", "doubled"]


def test_a_saved_model_knows_its_lines(tmp_path):
    path = str(tmp_path / "model.pt")
    torch.jit.script(doubled).save(path)
    finding = first_of(torch.jit.load(path))
    assert finding.file == __file__
    assert finding.line == line_of(normalized, "x / total")


def test_code_outside_is_not_affected():
    torch.jit.script(doubled)(torch.ones(3))
    finding = first_of(doubled)
    assert finding.line == line_of(normalized, "x / total")
    assert [frame.line for frame in finding.stack[:2]] == [
        line_of(normalized, "x / total"),
        line_of(doubled, "normalized(x)"),
    ]
