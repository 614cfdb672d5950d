"""Detection is off until a step has gone wrong; its replay names the same origin as detection from the start."""

from __future__ import annotations

import pytest
import torch

import torchnan
from tests.support.planted_faults import MODELS, SEEDS, planted
from tests.zoo.framework import PROGRAMS
from tests.zoo.run_score import ZOO, score


def train(model, batch, fault, step_of_fault):
    """Two guarded steps; the event of the one that was bad."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = torchnan.StepGuard(
        model, optimizer, lambda model, batch: model(**batch).loss, remedy={"model": "skip"}, max_consecutive=9
    )
    for step in (1, 2):
        hook = fault.plant() if step == step_of_fault else None
        guard.step(batch)
        if hook is not None:
            hook.remove()
    assert all(bool(p.isfinite().all()) for p in model.parameters()) or fault.names
    return guard.events[0] if guard.events else None


@pytest.mark.breadth(4)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", MODELS)
def test_the_replay_names_the_fault(name, seed):
    model, batch, fault, step = planted(name, seed)
    event = train(model, batch, fault, step)
    if event is None:  # it did no harm: nor does it under detection, see test_fault_trials.py
        return
    assert (event.verdict, event.same_bits) == ("persistent", True), f"{fault.place}:\n{event}"
    truth = {**fault.truth, "step": step}
    told = {key: getattr(event.finding, key) for key in truth}
    assert told == truth, f"{fault.place} at step {step}:\n{event.finding}"
    assert not fault.names or event.finding.name in fault.names, f"{fault.place}:\n{event.finding}"
    assert event.cause == {"parameter": "model", "op": "operation"}[fault.truth["origin"]]


@pytest.mark.slow
def test_the_replay_names_the_origins_of_the_zoo(tmp_path):
    ended, rows = score(PROGRAMS / "open", ZOO / "replay_adapter.py", tmp_path)
    assert {row["id"]: row["verdict"] for row in rows if not row["exact"]} == {}, ended.stdout
    assert ended.returncode == 0
