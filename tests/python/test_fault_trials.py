"""Faults planted at random in real models: the report names the fault, every time, and nothing else."""

from __future__ import annotations

import pytest
import torch

import torchnan
from faults import MODELS, SEEDS, Fault, fresh, planted
from torchnan._load import _C

TRIALS = "{harmful} faults in six models named exactly, one error each; silent on {harmless} that did no harm"


def train(model, batch, watch, fault: Fault | None, step_of_fault: int) -> list[torch.Tensor]:
    """Two steps; what the program looks at."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    symptoms = []
    for step in (1, 2):
        watch.mark_step(step)
        hook = fault.plant() if fault and step == step_of_fault else None
        loss = model(**batch).loss
        loss.backward()
        symptoms += [loss.detach(), *(p.grad.detach().clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
        if hook is not None:
            hook.remove()
    return symptoms + [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_a_clean_run_is_silent(name):
    model, batch = fresh(name)
    with torchnan.detect(action="log") as watch:
        train(model, batch, watch, None, 0)
    assert watch.findings == []


# Lineage entries, stacks resolved, statistics. GPT-2's causal mask holds -inf: it is remembered, and no more.
@pytest.mark.parametrize(("name", "spent"), [("vit", (0, 0, 0)), ("mamba", (0, 0, 0)), ("gpt2", (12, 0, 0))])
def test_a_healthy_run_explains_nothing(name, spent):
    model, batch = fresh(name)
    before = _C.effort()
    with torchnan.detect(action="log") as watch:
        train(model, batch, watch, None, 0)
    assert watch.stats()["checked"] > 100
    assert tuple(now - then for now, then in zip(_C.effort(), before, strict=True)) == spent


def test_an_alarm_is_explained_once():
    before = _C.effort()
    with torchnan.detect(action="log") as watch:
        held = torch.zeros(1).log()
    remembered, resolved, censuses = (now - then for now, then in zip(_C.effort(), before, strict=True))
    assert len(watch.findings) == 1
    assert remembered > 0
    assert resolved > 0
    assert censuses > 0
    del held


@pytest.mark.bar(3)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", MODELS)
def test_the_fault_is_named(name, seed, figure):
    model, batch, fault, step = planted(name, seed)
    with torchnan.detect(action="log") as watch:
        symptoms = train(model, batch, watch, fault, step)
    errors = [finding for finding in watch.findings if finding.level == "error"]
    if all(bool(x.isfinite().all()) for x in symptoms):
        assert not errors, f"{fault.place} has done no harm:\n{errors[0]}"
        figure(TRIALS, harmful=0, harmless=1)
        return
    assert errors, f"{fault.place}: no word of it"
    truth = {**fault.truth, "step": step}
    told = {key: getattr(errors[0], key) for key in truth}
    assert told == truth, f"{fault.place} at step {step}:\n{errors[0]}"
    assert not fault.names or errors[0].name in fault.names, f"{fault.place}:\n{errors[0]}"
    assert len(errors) == 1, f"{fault.place}: one cause, {len(errors)} errors:\n{errors[1]}"
    figure(TRIALS, harmful=1, harmless=0)
