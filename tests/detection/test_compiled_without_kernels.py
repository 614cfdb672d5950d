"""Compiled with a backend that generates no kernels, but runs the graph operation by operation."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import torchnan

BACKENDS = ["aot_eager", "eager"]


@pytest.fixture(autouse=True)
def nothing_is_compiled_before():
    torch._dynamo.reset()


def line_of(function, offset: int) -> int:
    return inspect.getsourcelines(function)[1] + offset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        y = self.fc(x) * 0
        return y / y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        y = self.block(x + 1)
        return y.sum()


def slope(x):
    y = x - x
    z = y.sqrt()
    return z.sum()


def broken(x):
    y = x - x
    torch._dynamo.graph_break()
    z = y.log()
    return z.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_has_its_own_line_and_module(backend):
    model = torch.compile(Net(), backend=backend)
    with torchnan.detect(action="log") as watch:
        model(torch.ones(2, 2)).backward()
    (finding,) = watch.findings  # its backward node is not a second cause
    assert (finding.op, finding.kind, finding.module) == ("aten::div", "nan", "block")
    assert finding.line == line_of(Block.forward, 2)
    assert [frame.line for frame in finding.stack[:2]] == [line_of(Block.forward, 2), line_of(Net.forward, 1)]
    assert (
        finding.stack[2].function == "test_an_operation_has_its_own_line_and_module"
    )  # the compiled function is there once


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_of_the_backward_pass_has_the_line_of_the_forward_call(backend):
    x = torch.ones(3, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        torch.compile(slope, backend=backend)(x).backward()
    (finding,) = watch.findings
    assert (finding.op, finding.kind, finding.phase) == ("aten::div", "inf", "backward")
    assert (finding.line, finding.module) == (line_of(slope, 2), None)
    assert finding.backward_stack == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_after_a_graph_break_the_function_is_there_once(backend):
    with torchnan.detect(action="log") as watch:
        torch.compile(broken, backend=backend)(torch.ones(3)).item()
    (finding,) = watch.findings
    assert (finding.op, finding.line, finding.module) == ("aten::log", line_of(broken, 3), None)
    assert [frame.function for frame in finding.stack[:2]] == ["broken", inspect.currentframe().f_code.co_name]


def test_graphs_whose_code_is_alike_are_told_apart():
    def first(x):
        return (x - 1).log().sum()

    def second(x):
        return (x - 1).log().sum()

    with torchnan.detect(action="log") as watch:
        for function in (first, second):
            torch.compile(function, backend="aot_eager")(torch.ones(3)).item()
    assert [finding.line for finding in watch.findings] == [line_of(first, 1), line_of(second, 1)]
