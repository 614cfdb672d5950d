"""Faults planted at random in real models: the report always names the fault, and nothing else."""

from __future__ import annotations

import pytest
import torch

import torchnan
from tests.support.planted_faults import MODELS, SEEDS, fresh, is_named, planted, train
from tests.support.testing_extension import _testing

TRIALS = "{harmful} faults in six models named exactly, one error each; silent on {harmless} that did no harm"


@pytest.mark.parametrize("name", MODELS)
def test_a_clean_run_is_silent(name):
    model, batch = fresh(name)
    with torchnan.detect(action="log") as watch:
        train(model, batch, watch)
    assert watch.findings == []


# Lineage entries, stacks resolved, statistics, results attributed. GPT-2's causal mask holds -inf: it is remembered.
@pytest.mark.parametrize(("name", "spent"), [("vit", (0, 0, 0, 0)), ("mamba", (0, 0, 0, 0)), ("gpt2", (12, 0, 0, 12))])
def test_a_healthy_run_explains_nothing(name, spent):
    model, batch = fresh(name)
    before = _testing.work_counters()
    with torchnan.detect(action="log") as watch:
        train(model, batch, watch)
    assert watch.stats()["checked"] > 100
    assert tuple(now - then for now, then in zip(_testing.work_counters(), before, strict=True)) == spent


def test_an_alarm_is_explained_once():
    before = _testing.work_counters()
    with torchnan.detect(action="log") as watch:
        held = torch.zeros(1).log()
    remembered, resolved, censuses, _ = (now - then for now, then in zip(_testing.work_counters(), before, strict=True))
    assert len(watch.findings) == 1
    assert remembered > 0
    assert resolved > 0
    assert censuses > 0
    del held


def test_the_place_of_a_call_is_resolved_once_for_its_weight_and_bias():
    layers = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(20)))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.fill_(float("nan"))
    with torchnan.detect(action="log"):
        before = _testing.work_counters()
        layers(torch.ones(1, 2))
        _, resolved, _, _ = (now - then for now, then in zip(_testing.work_counters(), before, strict=True))
    assert resolved == 20


@pytest.mark.breadth(6)
@pytest.mark.guarantee(3)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", MODELS)
def test_the_fault_is_named(name, seed, figure):
    model, batch, fault, step = planted(name, seed)
    with torchnan.detect(action="log") as watch:
        symptoms = train(model, batch, watch, fault, step)
    harmful = is_named(watch, symptoms, fault, step)
    figure(TRIALS, harmful=int(harmful), harmless=int(not harmful))
