"""torchnan.guard and torch.ops.torchnan.*"""

from __future__ import annotations

import collections
import dataclasses
import re

import pytest
import torch

import torchnan
from tests.support.forked_python import run_forked

ops = torch.ops.torchnan


def test_a_finite_value_passes_as_a_view_with_a_separate_node():
    x = torch.ones(2, 3, requires_grad=True).t() * 1
    y = torchnan.guard(x, "here")
    assert y.data_ptr() == x.data_ptr()
    assert (y.shape, y.stride(), y.requires_grad) == (x.shape, x.stride(), True)
    assert y.grad_fn.name() == "GuardBackward"
    y.sum().backward()


def test_a_bad_value_raises_here_with_and_without_a_detection():
    bad = torch.tensor([1.0, float("nan")])
    with pytest.raises(torchnan.NonFiniteError, match="it reached guard here") as raised:
        torchnan.guard(bad, "here")
    assert raised.value.finding.harm.name == "here"
    with torchnan.detect(action="log") as watch:
        torchnan.guard(torch.zeros(1).log(), "there")
    assert (watch.first.op, watch.first.harm.kind, watch.first.harm.name) == ("aten::log", "guard", "there")


def test_a_bad_gradient_raises_when_it_passes():
    x = torch.zeros(2, requires_grad=True)
    y = torchnan.guard(x * 1, "before the root").sqrt().sum()
    with pytest.raises(torchnan.NonFiniteError, match="before the root") as raised:
        y.backward()
    assert raised.value.finding.phase == "backward"


def test_in_place_arithmetic_after_a_guard_has_the_right_gradient():
    x = torch.ones(2, requires_grad=True)
    y = torchnan.guard(x * 2, "y")
    y.mul_(3)
    y.sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]


def test_a_list_is_guarded_one_by_one():
    out = ops.guard([torch.ones(1), torch.ones(2)], "pair")
    assert [t.numel() for t in out] == [1, 2]
    with pytest.raises(torchnan.NonFiniteError):
        ops.guard([torch.ones(1), torch.full((1,), float("inf"))], "pair")


def test_transforms_go_through():
    def f(x):
        return (torchnan.guard(x, "in") ** 2).sum()

    x = torch.arange(3.0)
    assert torch.func.grad(f)(x).tolist() == [0.0, 2.0, 4.0]
    assert torch.func.jvp(f, (x,), (torch.ones(3),))[1] == 6.0
    assert torch.vmap(lambda row: torchnan.guard(row, "row") + 1)(torch.ones(2, 3)).tolist() == [[2.0] * 3] * 2
    with pytest.raises(torchnan.NonFiniteError):
        torch.vmap(lambda row: torchnan.guard(row.log(), "row"))(-torch.ones(2, 3))


def test_all_finite_and_counts():
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), -float("inf")])
    assert not ops.all_finite(x)
    assert ops.all_finite([torch.ones(2), torch.arange(3)])
    assert not ops.all_finite([torch.ones(2), x])
    assert ops.count_nonfinite(x).tolist() == [1, 1, 2]
    assert ops.count_nonfinite([x, torch.ones(1)]).tolist() == [[1, 1, 2], [0, 0, 0]]


def test_stats_are_those_of_the_running_detection():
    assert dict(ops.stats()) == {}
    with torchnan.detect():
        torch.ones(3).log()
        assert ops.stats()["ops"] >= 2


def test_operators_work_in_torchscript():
    @torch.jit.script
    def f(x: torch.Tensor):
        return (
            torch.ops.torchnan.guard(x, "s"),
            torch.ops.torchnan.all_finite([x]),
            torch.ops.torchnan.count_nonfinite(x),
        )

    guarded, finite, counts = f(torch.ones(2))
    assert guarded.tolist() == [1.0, 1.0]
    assert bool(finite)
    assert counts.tolist() == [0, 0, 0]


def test_one_variable_turns_everything_off():
    code = "import torch, torchnan; print(torchnan.guard(torch.tensor(float('nan')), 'off').item())"
    assert run_forked(code, TORCHNAN="0").stdout.strip() == "nan"
    assert run_forked(code).returncode == 1


@dataclasses.dataclass(frozen=True)
class Output:
    loss: torch.Tensor
    logits: list[torch.Tensor]
    name: str = "out"


def test_containers_are_guarded_tensor_by_tensor():
    pair = collections.namedtuple("Pair", "a b")
    given = {"out": Output(torch.ones(1), [torch.ones(2)]), "pair": pair(torch.ones(3), 4), "n": 1}
    guarded = torchnan.guard(given, "batch")
    assert type(guarded["out"]) is Output
    assert type(guarded["pair"]) is pair
    assert (guarded["n"], guarded["pair"].b, guarded["out"].name) == (1, 4, "out")
    assert guarded["out"].logits[0].data_ptr() == given["out"].logits[0].data_ptr()
    bad = Output(torch.ones(1), [torch.full((2,), float("nan"))])
    with pytest.raises(torchnan.NonFiniteError) as raised:
        torchnan.guard({"out": bad}, "batch")
    assert raised.value.finding.harm.name == "batch['out'].logits[0]"


def test_gradients_of_tensors_in_a_batch_are_guarded():
    x = torch.zeros(2, requires_grad=True)
    batch = torchnan.guard({"x": x * 1}, "batch")
    with pytest.raises(torchnan.NonFiniteError, match="batch"):
        batch["x"].sqrt().sum().backward()


@pytest.mark.parametrize("value", [3, {"a": 1}, [], None])
def test_a_value_without_tensors_is_rejected(value):
    with pytest.raises(TypeError, match="there is no tensor in it"):
        torchnan.guard(value)


def test_a_name_that_is_not_a_string_is_rejected():
    for value in (torch.ones(2), [torch.ones(2)]):
        with pytest.raises(TypeError, match=re.escape("guard(name=3): name is a string.")):
            torchnan.guard(value, 3)
