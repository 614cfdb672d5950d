"""Bad values stay cheap: what a reported cause leads to inherits it, and nothing is searched for once more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan
from tests.support.testing_extension import _testing

REMEMBERED, RESOLVED, STATISTICS, ATTRIBUTED = range(4)


def work_of(step):
    before = _testing.work_counters()
    step()
    return [now - then for now, then in zip(_testing.work_counters(), before, strict=True)]


def small_training(optimizer, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 96))
    steps = optimizer(model.parameters(), lr=1e-3, **options)
    x = torch.randn(64, 96)

    def step():
        steps.zero_grad()
        model(x).square().mean().backward()
        steps.step()

    return model, step


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
    "AdamW": (torch.optim.AdamW, {"foreach": False}),
    "AdamW foreach": (torch.optim.AdamW, {"foreach": True}),
    "AdamW fused": (torch.optim.AdamW, {"fused": True}),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_nothing_but_nan_searches_for_no_cause(optimizer):
    kind, options = OPTIMIZERS[optimizer]
    model, step = small_training(kind, **options)
    with torchnan.detect(action="log") as watch:
        step()
        with torch.no_grad():
            model[0].weight[0, 0] = float("nan")
        step()
        step()
        work = work_of(step)
    assert all(p.isnan().all() for p in model.parameters())
    assert len(watch.findings) == 1
    assert work[ATTRIBUTED] == 0
    assert work[RESOLVED] == 0
    assert work[STATISTICS] == 0
    assert work[REMEMBERED] > 0


def test_a_cause_that_was_not_reported_is_searched_for():
    x = torch.full((100,), float("nan"))
    with torchnan.detect(action="log"):
        y = x * 2
        assert work_of(lambda: y + 1)[ATTRIBUTED] == 1


def test_another_cause_that_meets_a_reported_one_is_searched_for():
    with torchnan.detect(action="log") as watch:
        reported = torch.zeros(100).log()
        reported.sum().item()
        assert len(watch.findings) == 1
        other = torch.zeros(100).log() * 0
        assert work_of(lambda: reported + other)[ATTRIBUTED] == 1
        other.sum().item()
    assert watch.findings[0].line != watch.findings[1].line


def test_a_result_that_is_finite_again_has_no_cause():
    with torchnan.detect(action="log") as watch:
        bad = torch.zeros(100).log()
        bad.sum().item()
        clean = torch.nan_to_num(bad, neginf=0.0)
        ratio = clean / clean
        ratio.sum().item()
    assert [finding.op for finding in watch.findings] == ["aten::log", "aten::div"]


def test_a_new_cause_after_a_reported_one_in_other_memory_is_found():
    with torchnan.detect(action="log") as watch:
        weight = torch.ones(8, 8)
        weight[0] = torch.zeros(8).log()
        weight.sum().item()
        row = weight[1] - 1
        (row / row).sum().item()
    assert [finding.op for finding in watch.findings] == ["aten::log", "aten::div"]


def test_a_list_with_one_reported_element_attributes_the_others():
    with torchnan.detect(action="log") as watch:
        reported = torch.zeros(5000).log()
        reported.sum().item()
        fine = torch.zeros(5000)
        torch._foreach_div_([reported, fine], [torch.ones(5000), torch.zeros(5000)])
        fine.sum().item()
    assert [finding.op for finding in watch.findings] == ["aten::log", "aten::_foreach_div_"]


def test_a_finding_of_a_reported_cause_is_still_one():
    model, step = small_training(torch.optim.SGD)
    with torchnan.detect(action="log") as watch:
        step()
        with torch.no_grad():
            model[3].bias[1] = float("inf")
        for _ in range(5):
            step()
    assert len(watch.findings) == 1
    assert watch.findings[0].name == "3.bias"
