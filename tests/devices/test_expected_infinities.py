"""Infinities that a call site makes in every step, and that do no harm: the host stops waiting for them."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import torchnan
from torchnan._load import _C

STEPS = 10


def train(x, watch, use_last):
    """Like the position buckets of T5, of which the first is log(0). Returns how often the host has waited in each step
    but the last one."""
    waits = []
    for step in range(STEPS):
        before = watch.stats()["device_waits"]
        logs = x.log()
        (use_last if step == STEPS - 1 else mask)(x, logs)
        del logs
        _C.count_step()
        waits.append(watch.stats()["device_waits"] - before)
    return waits[:-1]


def mask(x, logs):
    torch.where(x > 0, logs, torch.zeros_like(logs)).sum().item()


def read(x, logs):
    logs.sum().item()


def read_later(x, logs):
    (logs * 2).min().item()


def multiply_with_zero(x, logs):
    (logs * 0).sum().item()


def take_as_gradient(x, logs):
    parameter = nn.Parameter(torch.zeros_like(x))
    parameter.grad = logs
    torch.optim.SGD([parameter], lr=1.0).step()


def subtract_from_itself(x, logs):
    torch.where(x > 0, logs, logs - logs).sum().item()


@pytest.fixture
def x(device):
    return torch.arange(8.0).to(device)


def test_the_host_soon_stops_waiting_for_infinities_that_do_no_harm(machine, x):
    with torchnan.detect(action="log") as watch:
        waits = train(x, watch, mask)
    assert waits[0] > 0
    assert waits[-3:] == [0, 0, 0]
    assert watch.findings == []


@pytest.mark.parametrize("harm", [read, read_later, multiply_with_zero, take_as_gradient, subtract_from_itself])
def test_an_expected_infinity_that_does_harm_is_found(machine, x, harm):
    """Fails if a call site is trusted for ever, or if only an alarm leads to a report."""
    with torchnan.detect(action="log") as watch:
        assert train(x, watch, harm)[-1] == 0
    line = next(line for line, text in enumerate(inspect.getsource(train).splitlines()) if "x.log()" in text)
    expected = ("aten::log", train.__code__.co_firstlineno + line)
    assert [(finding.op, finding.line) for finding in watch.findings] == [expected]


def test_the_host_always_waits_where_nothing_is_assumed(machine, x):
    with torchnan.detect(action="log", rescan_every=1) as watch:
        assert 0 not in train(x, watch, mask)


def test_infinities_of_skipped_steps_are_not_expected(machine, x):
    """Fails if a scaler that begins with a scale that is too large changes what is assumed afterwards."""
    with torchnan.detect(action="log") as watch:
        for _ in range(STEPS):
            before = watch.stats()["device_waits"]
            mask(x, x.log())
            assert watch.stats()["device_waits"] > before
            _C.count_skipped_step()  # as after GradScaler.step()


def test_gradients_are_not_expected_to_be_infinite(machine, x):
    """Fails if their bounds are given up: then the steps of the optimizer are not proved any more."""
    waits = []
    with torchnan.detect(action="log") as watch:
        for _ in range(STEPS):
            before = watch.stats()["device_waits"]
            leaf = x.clone().requires_grad_()
            leaf.sqrt().sum().backward()  # 1 / sqrt(0)
            del leaf
            machine.synchronize()
            mask(x, x + 1)
            waits.append(watch.stats()["device_waits"] - before)
    assert 0 not in waits[1:]
