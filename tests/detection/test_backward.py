"""The backward pass: the node, the operation in it, and the forward line and module that made the node."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchnan
from tests.support.function_names import name_in_report


def line_of(thing, mark: str = "# HERE") -> int:
    source, first = inspect.getsourcelines(thing)
    return first + next(i for i, text in enumerate(source) if mark in text)


class Distance(nn.Module):
    def forward(self, a, b):
        return (a - b).pow(2).sum(-1).sqrt()  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)
        self.head = nn.ModuleDict({"distance": Distance()})

    def forward(self, a, b):
        return self.head["distance"](self.encoder(a), self.encoder(b)).mean()


def find(step, **options) -> torchnan.Finding:
    with torchnan.detect(action="log", **options) as watch:
        held = step()
    assert watch.first is not None
    del held
    return watch.first


def test_names_node_line_and_module():
    net, x = Net(), torch.randn(3, 2)

    def step():
        net(x, x).backward()
        return net.encoder.weight.grad

    finding = find(step)
    assert (finding.phase, finding.node, finding.op, finding.kind) == ("backward", "SqrtBackward0", "aten::div", "inf")
    assert (finding.file, finding.line) == (__file__, line_of(Distance))
    assert finding.module == "head.distance"
    names = [name_in_report(Distance.forward), name_in_report(Net.forward)]
    assert [frame.function for frame in finding.stack][:2] == names
    assert "in the backward pass" in str(finding)


def test_tells_the_same_module_of_a_list_apart():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Identity(), Distance(), Distance()])

        def forward(self, a):
            near = self.blocks[1](a, a + 1)
            return near.sum() + self.blocks[2](a, a).sum()

    stack, a = Stack(), torch.randn(2, 2, requires_grad=True)
    finding = find(lambda: stack(a).backward() or a.grad)
    assert finding.module == "blocks.2"


def test_without_stacks_the_node_is_still_named():
    net, x = Net(), torch.randn(3, 2)
    finding = find(lambda: net(x, x).backward() or net.encoder.weight.grad, stacks=False)
    assert finding.node == "SqrtBackward0"
    assert finding.module is None


def test_custom_functions_are_named_by_the_line_that_applies_them():
    class Divide(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad / x

    class Act(nn.Module):
        def forward(self, x):
            return Divide.apply(x)  # HERE

    act, x = Act(), torch.tensor([0.0, 1.0], requires_grad=True)
    finding = find(lambda: act(x).sum().backward() or x.grad)
    assert (finding.node, finding.op) == ("DivideBackward", "aten::div")
    assert (finding.line, finding.module) == (line_of(Act), "")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_forward_is_blamed_where_it_is_written(reentrant):
    class Block(nn.Module):
        def forward(self, x):
            return (x * 0).log()  # HERE

    block, x = Block(), torch.ones(2, requires_grad=True)
    finding = find(lambda: checkpoint(block, x, use_reentrant=reentrant).sum().backward())
    assert (finding.op, finding.phase, finding.line) == ("aten::log", "forward", line_of(Block))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_backward_is_blamed_on_the_line_that_was_run_again(reentrant):
    net, x = Net(), torch.randn(3, 2, requires_grad=True)
    finding = find(lambda: checkpoint(net, x, x, use_reentrant=reentrant).backward() or net.encoder.weight.grad)
    assert (finding.node, finding.line) == ("SqrtBackward0", line_of(Distance))
    assert finding.module == "head.distance"


class Rms(nn.Module):
    def forward(self, x):
        return x * x.square().mean(-1, keepdim=True).rsqrt()


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_operation_that_is_run_again_has_been_reported(reentrant):
    norm, weight = nn.Sequential(Rms(), nn.Tanh()), nn.Parameter(torch.zeros(2, 4))
    optimizer = torch.optim.SGD([weight], 0.1)
    with torchnan.detect(action="log") as watch:
        checkpoint(norm, weight, use_reentrant=reentrant).sum().backward()
        optimizer.step()
    findings = [(finding.op, finding.module, finding.node, finding.harm.kind) for finding in watch.findings]
    assert findings == [("aten::rsqrt", "0", None, "backward")]


class Two(nn.Module):
    """The first result is NaN. The second hides its NaN until the backward pass."""

    def __init__(self):
        super().__init__()
        self.shown, self.hidden = Rms(), Rms()

    def forward(self, x):
        shown = checkpoint(self.shown, x, use_reentrant=False)
        return shown, checkpoint(lambda x: self.hidden(x).nan_to_num(), x, use_reentrant=False)


def test_the_same_line_in_another_module_has_not():
    weight = nn.Parameter(torch.zeros(2, 4))
    optimizer = torch.optim.SGD([weight], 0.1)
    with torchnan.detect(action="log") as watch:
        shown, hidden = Two()(weight)
        shown.sum().item()
        hidden.sum().backward()
        optimizer.step()
    findings = [(finding.module, finding.harm.kind) for finding in watch.findings]
    assert findings == [("shown", "read"), ("hidden", "gradient")]


def test_results_of_autograd_grad_are_checked():
    x = torch.zeros(2, requires_grad=True)
    finding = find(lambda: torch.autograd.grad(x.sqrt().sum(), x))
    assert finding.node == "SqrtBackward0"
    assert finding.harm.kind == "alive"


def test_double_backward_is_seen():
    x = torch.zeros(1, requires_grad=True)

    def step():
        (gradient,) = torch.autograd.grad(x.pow(1.5).sum(), x, create_graph=True)  # 1.5 x^0.5: finite
        return torch.autograd.grad(gradient.sum(), x)  # 0.75 x^-0.5: not

    finding = find(step)
    assert finding.phase == "backward"
    assert finding.kind == "inf"


def test_a_root_that_is_not_finite_is_reported_before_the_backward_pass_begins():
    x = torch.zeros(1, requires_grad=True)
    with torchnan.detect():
        loss = x.log().sum()
        with pytest.raises(torchnan.NonFiniteError) as raised:
            loss.backward()
    assert raised.value.finding.op == "aten::log"
    assert raised.value.finding.harm.kind == "backward"
    assert x.grad is None


def test_hooks_are_blamed_on_their_own_line():
    def double_log(grad):
        return (grad * 0).log()  # HERE

    x = torch.ones(2, requires_grad=True)

    def step():
        y = x * 2
        y.register_hook(double_log)
        y.sum().backward()
        return x.grad

    finding = find(step)
    assert (finding.op, finding.line) == ("aten::log", line_of(double_log))


def test_a_hook_that_cleans_keeps_it_silent():
    x = torch.zeros(2, requires_grad=True)
    with torchnan.detect() as watch:
        y = x * 1
        y.register_hook(lambda grad: torch.nan_to_num(grad, posinf=0.0))
        y.sqrt().sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]
    assert watch.findings == []


def test_values_that_an_earlier_where_discards_are_silent():
    x = torch.zeros(3, requires_grad=True)
    with torchnan.detect() as watch:
        torch.linalg.vector_norm(x).backward()  # makes 0/0 and masks it in the same node
    assert watch.findings == []
    assert x.grad.tolist() == [0.0] * 3


def test_accumulation_of_finite_gradients_into_an_infinite_one_is_an_origin():
    x = torch.ones(1, requires_grad=True)

    def step():
        (x * 3e38).backward()
        (x * 3e38).backward()
        return x.grad

    finding = find(step)
    assert (finding.kind, finding.phase) == ("inf", "backward")
    assert finding.op in ("aten::add_", "aten::add")


def test_the_error_comes_through_the_engine_as_it_is():
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect(when="origin"):
            x.sqrt().backward()
    assert raised.value.finding.node == "SqrtBackward0"
