"""How long torchnan may look for the origin of a value in a compiled region."""

from __future__ import annotations

import pytest
import torch

import torchnan
from torchnan.detection.compiled import time_limit


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Clock:
    """A clock that moves when an operator of the program runs."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


clock = Clock()


@torch.library.custom_op("torchnan_tests::takes_a_minute", mutates_args=())
def takes_a_minute(x: torch.Tensor) -> torch.Tensor:
    clock.now += 60
    return x.clone()


takes_a_minute.register_fake(torch.empty_like)


@torch.compile
def late(x):
    return torch.log(takes_a_minute(takes_a_minute(x))).sum()


@torch.compile
def at_once(x):
    return torch.log(x).sum()


def regions_of(session):
    return [finding.compiled for finding in session.findings]


@pytest.fixture
def moving_clock(monkeypatch):
    monkeypatch.setattr(time_limit, "time", clock)


def test_a_call_whose_origin_is_not_found_in_time_is_named_by_its_region(moving_clock):
    with torchnan.detect(action="log", max_explanation_seconds=100) as session:
        late(-torch.ones(3)).item()
    (region,) = regions_of(session)
    assert region.region == "late"
    assert region.obstacle == "its origin was not found within max_explanation_seconds=100"
    assert session.stats()["internal_errors"] == 0


def test_the_region_is_not_looked_at_again_in_the_session(moving_clock):
    with torchnan.detect(action="log", max_explanation_seconds=100) as session:
        late(-torch.ones(3)).item()
        before = clock.now
        late(-torch.ones(3)).item()
        assert clock.now == before + 120  # the call itself
        at_once(-torch.ones(3)).item()
    assert session.findings[-1].op == "aten::log"


def test_there_is_time_for_what_takes_less(moving_clock):
    with torchnan.detect(action="log", max_explanation_seconds=10_000) as session:
        late(-torch.ones(3)).item()
    assert session.first.op == "aten::log"


def test_no_time_means_that_nothing_is_replayed():
    with torchnan.detect(action="log", max_explanation_seconds=0) as session:
        at_once(-torch.ones(3)).item()
    (region,) = regions_of(session)
    assert region.obstacle == "its origin was not found within max_explanation_seconds=0"
