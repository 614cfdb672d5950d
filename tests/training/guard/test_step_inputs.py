"""The buffers that a step guard saves before a step are those that ``model.named_buffers()`` yields then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchnan._load import _C
from torchnan.training.guard.step.buffers import Buffers
from torchnan.training.guard.step.step_inputs import StepInputs

MASK = torch.tensor([1.0, 2.0])


class Computed(nn.Module):
    """Yields a buffer that is not registered."""

    def named_buffers(self, *args, **kwargs):
        yield "computed", MASK


class ComputedMembers(nn.Module):
    def _named_members(self, *args, **kwargs):
        yield "member", MASK


class Hidden(nn.Module):
    """Has a child that is not registered."""

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        yield prefix, self
        yield f"{prefix}.hidden", nn.BatchNorm1d(2)


class Adapter(nn.Module):
    """Looks up in another module what it does not have."""

    def __init__(self, adapted):
        super().__init__()
        self.__dict__["adapted"] = adapted

    def __getattribute__(self, name):
        if name in ("_buffers", "_modules"):
            return super().__getattribute__("__dict__")["adapted"].__dict__[name]
        return super().__getattribute__(name)


class ComputedDict(nn.Module):
    """Has a dict of buffers that is not its own."""

    @property
    def _buffers(self):
        return {"mask": MASK}

    @_buffers.setter
    def _buffers(self, buffers):
        pass


def with_own_method() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].named_modules = lambda *args: [("0", nn.BatchNorm1d(2))]
    return model


def cyclic() -> nn.Module:
    parent = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()))
    parent[1].add_module("parent", parent)
    return parent


def with_missing() -> nn.Module:
    model = nn.Sequential(nn.Tanh(), nn.Linear(2, 2))
    model.add_module("none", None)
    return model


MODELS = {
    "none": lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh())),
    "a missing module": with_missing,
    "a cycle": cyclic,
    "a batch norm": lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))),
    "named_buffers": lambda: Computed(),
    "_named_members": lambda: ComputedMembers(),
    "named_modules": lambda: nn.Sequential(nn.Tanh(), Hidden()),
    "named_modules of one module": with_own_method,
    "a property": lambda: nn.Sequential(nn.Tanh(), ComputedDict()),
    "__getattribute__": lambda: nn.Sequential(Adapter(nn.BatchNorm1d(2))),
}
WITHOUT = ("none", "a missing module", "a cycle")


def saved(inputs: StepInputs) -> dict[str, torch.Tensor]:
    inputs.begin_step()
    return inputs.buffers.of_model()


def inputs_of(model: nn.Module) -> StepInputs:
    return StepInputs(Buffers(model, (), None), "reference")


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_buffers_are_saved_wherever_they_come_from(name):
    model = MODELS[name]()
    assert_same(saved(inputs_of(model)), dict(model.named_buffers()))
    assert _C.may_have_buffers(model) == (name not in WITHOUT)


@pytest.mark.parametrize("name", WITHOUT)
def test_buffers_that_come_and_go_are_noticed(name):
    model = MODELS[name]()
    inputs = inputs_of(model)
    assert saved(inputs) == {}
    model[1].register_buffer("late", None)
    assert saved(inputs) == {}
    model[1].late = MASK.clone()
    assert_same(saved(inputs), {"1.late": MASK})
    model[1].late.add_(1)
    assert_same(saved(inputs), {"1.late": MASK + 1})
    del model[1].late
    assert saved(inputs) == {}
    model.append(nn.BatchNorm1d(2))
    assert_same(saved(inputs), dict(model.named_buffers()))


def test_a_half_built_model_is_an_error_of_its_own():
    model = nn.Sequential(nn.Linear(2, 2))
    del model[0]._buffers
    with pytest.raises(AttributeError, match="'Linear' object has no attribute '_buffers'"):
        saved(inputs_of(model))
