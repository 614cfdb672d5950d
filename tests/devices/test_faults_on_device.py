"""Real models on a device: trained in silence, without a wait; and with faults planted at random, which are named."""

from __future__ import annotations

import pytest

import torchnan

pytest.importorskip("transformers", reason="a machine with a GPU may have PyTorch alone")

from tests.support.planted_faults import MODELS, fresh, is_named, planted, train

SEEDS = 4
RUN_THERE = [name for name in MODELS if name != "mixtral"]  # the host has no histogram of integers to compute it with


@pytest.mark.guarantee(16)
@pytest.mark.parametrize("name", RUN_THERE)
def test_a_clean_run_is_silent_and_waited_for_as_often_as_without(name, machine, device):
    model, batch = fresh(name, device)
    plain = machine.count(lambda: train(model, batch))
    with torchnan.detect(action="log") as watch:
        watched = machine.count(lambda: train(model, batch, watch))
        assert watch.stats()["internal_errors"] == 0
    assert watch.findings == []
    makes_infinities = name == "t5"  # it takes the logarithm of distances, and one is zero: a GPU raises the alarm
    assert watched == plain or (makes_infinities and device.type == "cuda")


@pytest.mark.breadth(5)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", RUN_THERE)
def test_the_fault_is_named(name, seed, machine, device):
    """Fails where the inputs of an operation are not all noted, lists of any length among them."""
    model, batch, fault, step = planted(name, seed, device)
    with torchnan.detect(action="log") as watch:
        symptoms = train(model, batch, watch, fault, step)
    is_named(watch, symptoms, fault, step)
