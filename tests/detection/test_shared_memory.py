"""Calls whose arguments share memory: the old values are gone when the result exists."""

from __future__ import annotations

import pytest
import torch

import torchnan

LARGE, SMALL = 5000, 10


def findings_of(program, *arguments, **options):
    with torchnan.detect(action="log", **{"rescan_every": 0, **options}) as watch:
        kept = program(*arguments)
    del kept
    return [(f.kind, f.op, f.origin, f.harm.kind) for f in watch.findings]


def multiplied(x):
    return x.mul_(x)


def added_out(x):
    return torch.add(x, x, alpha=1e10, out=x)


def reversed_out(x):
    return torch.mul(x, x.flip(0), out=x)


def through_a_view(x):
    return torch.mul(x[: x.numel() // 2], 1e10, out=x[x.numel() // 2 :])


def accumulated(x):
    return x.addcmul_(x, x)


def in_a_list(x):
    torch._foreach_mul_([x], [x])
    return x


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize(
    "program",
    [multiplied, added_out, reversed_out, through_a_view, accumulated, in_a_list],
    ids=lambda program: program.__name__,
)
def test_a_value_made_over_its_own_arguments_is_the_operations_own(program, size):
    (finding,) = findings_of(program, torch.full((size,), 1e30))
    assert finding[0] == "inf"
    assert finding[2:] == ("op", "alive")


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_inf_made_over_its_own_arguments_is_reported_where_it_is_read(size):
    (finding,) = findings_of(lambda x: x.mul_(x).sum().item(), torch.full((size,), 1e30))
    assert finding == ("inf", "aten::mul_", "op", "read")


def test_a_nan_that_came_in_is_not_blamed_on_the_operation_that_overwrites_it():
    """The old values are scanned before they are overwritten, and not merely left out afterwards."""
    for program in (lambda x: torch.sqrt(x, out=x), lambda x: x.mul_(x), lambda x: torch._foreach_sqrt_([x])):
        x = torch.tensor([float("nan"), 1.0])
        (finding,) = findings_of(lambda x, program=program: (program(x), x.sum().item()), x)
        assert finding[2:] == ("input", "read")


def test_a_nan_made_earlier_keeps_its_origin_when_it_is_written_over_itself():
    (finding,) = findings_of(lambda: torch.mul(y := torch.full((2,), -1.0).log(), y, out=y))
    assert finding[1] == "aten::log"


# -- lists


def twice(a, b):
    torch._foreach_mul_([a, a, a, a], 1e10)


def as_a_part(a, b):
    torch._foreach_mul_([a, a[100:], a, a], 1e10)


def crossed(a, b):
    torch._foreach_mul_([a, b, a], [b, a, b])


@pytest.mark.parametrize("program", [twice, as_a_part, crossed], ids=lambda program: program.__name__)
def test_memory_that_is_in_a_list_twice_is_bounded_twice(program):
    with torchnan.detect(action="log", rescan_every=0) as watch:
        a, b = torch.full((LARGE,), 1e12), torch.full((LARGE,), 1e12)
        program(a, b)
    assert a.isinf().any()
    assert [(f.kind, f.op) for f in watch.findings] == [("inf", "aten::_foreach_mul_")]


def test_the_parts_of_a_flat_buffer_are_still_proved():
    flat = torch.ones(3 * LARGE)
    parts = list(flat.split(LARGE))
    with torchnan.detect(rescan_every=0) as watch:
        flat.mul_(1.0)
        before = watch.stats()
        torch._foreach_mul_(parts, 2.0)
        assert watch.stats()["proved"] == before["proved"] + 3
        assert watch.stats()["bytes"] == before["bytes"]


def test_an_element_that_is_written_again_is_not_held_to_its_first_bound():
    """Fails when only the second of the two loses its bound: a sample scans the first one after both writes."""
    with torchnan.detect(rescan_every=1) as watch:
        a = torch.full((LARGE,), 3.0)
        torch._foreach_mul_([a, a], 1e8)
    assert watch.stats()["internal_errors"] == 0
