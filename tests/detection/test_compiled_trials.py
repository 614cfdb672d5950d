"""Faults planted at random in real models that are compiled: the report is that of the model as it is."""

from __future__ import annotations

import pytest
import torch

import torchnan
from tests.support.planted_faults import SEEDS, fresh, is_named, planted, train

MODELS = ("gpt2", "bert", "t5", "vit")
TRIALS = "{harmful} faults in four compiled models named as in the models themselves; silent on {harmless} harmless"


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Faults are hooks: Dynamo has to notice that they come and go."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        yield
    torch._dynamo.reset()


@pytest.mark.breadth(0)
@pytest.mark.parametrize("name", MODELS)
def test_a_clean_run_of_a_compiled_model_is_silent(name):
    model, batch = fresh(name)
    model.compile()
    with torchnan.detect(action="log") as watch:
        train(model, batch, watch)
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0


@pytest.mark.breadth(0)
@pytest.mark.guarantee(3)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, SEEDS))])
@pytest.mark.parametrize("name", MODELS)
def test_the_fault_is_named_in_a_compiled_model(name, seed, figure):
    model, batch, fault, step = planted(name, seed)
    model.compile()
    with torchnan.detect(action="log") as watch:
        symptoms = train(model, batch, watch, fault, step)
    harmful = is_named(watch, symptoms, fault, step)
    assert watch.stats()["internal_errors"] == 0
    figure(TRIALS, harmful=int(harmful), harmless=int(not harmful))
