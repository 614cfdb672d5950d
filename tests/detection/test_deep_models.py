"""Models that are nested deeper than Python's stack: modules, parameters and buffers have their names in reports."""

from __future__ import annotations

import pytest
import torch

import torchnan

LEVELS = 2000


class Divided(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("scale", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / self.scale


class Recursive(torch.nn.Module):
    def __init__(self, levels: int) -> None:
        super().__init__()
        self.inner = Recursive(levels - 1) if levels else Divided()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def nested(innermost: torch.nn.Module, levels: int) -> torch.nn.Module:
    """Returns nested modules, each named by the number of modules inside it."""
    model = innermost
    for level in range(levels):
        model, inner = torch.nn.Module(), model
        model.add_module(str(level), inner)
    return model


def path(levels: int, *last: str) -> str:
    return ".".join([*map(str, reversed(range(levels))), *last])


def assert_is(name: str | None, expected: str) -> None:
    """Compares a name in a finding; a long one has lost its middle."""
    assert name is not None
    head, mark, tail = name.partition("...")
    assert name == expected or (mark and len(name) > 500)
    assert expected.startswith(head)
    assert expected.endswith(tail)


@pytest.mark.parametrize("levels", [20, 240, LEVELS])
def test_a_module_deep_inside_its_model_is_named(levels):
    innermost = Divided()
    model = nested(innermost, levels)
    with torchnan.detect(action="log", model=model) as watch:
        innermost(torch.ones(2, 4)).sum().item()
    assert_is(watch.first.module, path(levels))
    assert watch.stats()["internal_errors"] == 0
    with torchnan.detect(action="log") as watch:  # the model is found above it
        innermost(torch.ones(2, 4)).sum().item()
    assert_is(watch.first.module, path(levels))
    assert watch.stats()["internal_errors"] == 0


@pytest.mark.parametrize("levels", [50, 200])
def test_the_innermost_of_a_deep_recursion_is_named(levels):
    model = Recursive(levels)
    with torchnan.detect(action="log") as watch:
        model(torch.ones(2, 4)).sum().item()
    assert_is(watch.first.module, ".".join(["inner"] * (levels + 1)))
    assert watch.stats()["internal_errors"] == 0


@pytest.mark.parametrize(("name", "origin"), [("weight", "parameter"), ("scale", "buffer")])
def test_a_parameter_and_a_buffer_deep_inside_are_named(name, origin):
    innermost = Divided()
    innermost.scale.fill_(1)
    model = nested(innermost, LEVELS)
    with torch.no_grad():
        getattr(innermost, name)[1] = float("nan")
    with torchnan.detect(action="log", model=model) as watch:
        innermost(torch.ones(2, 4)).sum().item()
    assert watch.first.origin == origin
    assert_is(watch.first.name, path(LEVELS, name))
    assert watch.stats()["internal_errors"] == 0


def test_a_module_that_holds_itself_has_names():
    inner, outer = Divided(), torch.nn.Module()
    outer.inner = outer.other = torch.nn.ModuleList([inner])
    inner.outer = outer
    with torchnan.detect(action="log", model=outer) as watch:
        inner(torch.ones(2, 4)).sum().item()
    assert watch.first.module == "inner.0"
    assert watch.stats()["internal_errors"] == 0
