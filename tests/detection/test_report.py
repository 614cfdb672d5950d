"""The report is the product: what it says, word for word."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

import torchnan


class Attention(nn.Module):
    def forward(self, scores, mask):
        return scores.masked_fill(mask, float("-inf")).softmax(-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, scores, mask):
        return self.attn(scores, mask) * 2


def found(step) -> torchnan.Finding:
    with torchnan.detect(action="log") as watch:
        watch.mark_step(4711)
        step()
    return watch.first


def anonymous(text: str) -> str:
    """Without the line numbers of this file."""
    return re.sub(r"test_report\.py:\d+", "test_report.py:N", text)


def test_a_forward_finding(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    block, mask = Block(), torch.tensor([[True, False], [True, True]])
    finding = found(lambda: block(torch.ones(2, 2, requires_grad=True), mask).sum().backward())
    lines = anonymous(str(finding)).splitlines()
    assert lines[:9] == [
        "torchnan: NaN at step 4711, rank 3 (cpu)",
        "  made by   aten::_softmax, output 0   in attn   at tests/detection/test_report.py:N",
        "  output    f32[2,2]  nan 2  first at [1,0]",
        "  inputs    self f32[2,2]  min 1  max 1  -inf 3  constant from tests/detection/test_report.py:N",
        "  because   the row of self at [1,0] is -inf everywhere: softmax of a fully masked row is 0/0",
        "  lineage   _softmax -> mul (test_report.py:N) -> sum (test_report.py:N)",
        "  harm      backward() was called on it (test_report.py:N)",
        "  stack     tests/detection/test_report.py:N Attention.forward",
        "            tests/detection/test_report.py:N Block.forward",
    ]


def test_a_backward_finding():
    x = torch.zeros(3, requires_grad=True)

    def step():
        x.sqrt().sum().backward()
        with torch.no_grad():
            x.sub_(x.grad)

    text = anonymous(str(found(step)))
    assert "torchnan: Inf at step 4711 (cpu), in the backward pass" in text
    assert "made by   aten::div in SqrtBackward0, output 0   at tests/detection/test_report.py:N" in text
    assert "harm      it is in parameter" in text
    assert "\n  forward   tests/detection/test_report.py:N" in text


def test_it_fits_one_screen_and_holds_no_control_character():
    def deep(n, x):
        return deep(n - 1, x) if n else x.log()

    finding = found(lambda: sum(deep(40, torch.tensor([-1.0])) for _ in range(1)).item())
    text = str(finding)
    assert len(text.splitlines()) <= 24
    assert all(character == "\n" or character.isprintable() for character in text)


def test_json_is_strict_and_says_the_same():
    finding = found(lambda: torch.log(torch.tensor([-1.0, float("inf")])).sum().item())
    parsed = json.loads(finding.to_json(), parse_constant=lambda name: pytest.fail(f"not strict JSON: {name}"))
    assert parsed["schema"] == 1
    for field in ("level", "kind", "origin", "phase", "op", "output", "module", "step", "nan", "hint", "repeats"):
        assert parsed[field] == getattr(finding, field), field
    assert parsed["stack"][0]["line"] == finding.line
    assert parsed["harm"]["kind"] == finding.harm.kind
    assert set(parsed) == GOLDEN_FIELDS


# A field that is added unseen might hold what nobody meant to log.
GOLDEN_FIELDS = {
    *("schema", "level", "kind", "origin", "phase", "op", "overload", "output", "node", "module", "name", "stack"),
    *("step", "rank", "thread", "device", "dtype", "shape", "strides", "nan", "posinf", "neginf", "first_index"),
    *("inputs", "lineage", "lineage_omitted", "harm", "hint", "repeats"),
}


def test_no_value_of_a_tensor_is_told_beyond_the_range():
    secret = torch.tensor([-1234.5, 3.25, 77.125, 0.0])
    text = found(lambda: secret.log().sum().item()).to_json()
    assert "3.25" not in text
    assert "-1234.5" in text  # the smallest
    assert "77.125" in text  # the largest


def test_a_model_made_anew_at_the_address_of_a_dead_one_is_named():
    """Interned stacks know modules by address; that of a dead one may be another's by now."""

    class Log(torch.nn.Module):
        def forward(self, x):
            return x.log().sum()

    for _ in range(50):
        model = torch.nn.Sequential(torch.nn.Identity(), Log())
        with torchnan.detect(action="log") as watch:
            model(torch.full((3,), -1.0)).item()
        assert [finding.module for finding in watch.findings] == ["1"]


def test_places_are_known_after_many_models():
    """Each model has stacks of its own, and only so many are told apart at a time: those of dead models make room."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Tanh() for _ in range(40))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    with torchnan.detect(action="log") as watch:
        for _ in range(1500):  # 60,000 stacks
            model = Deep()
            model(torch.ones(1, requires_grad=True)).sum().backward()
        held = model(-torch.ones(1)).log()
    assert watch.first.file == __file__
    assert watch.first.module is None
    del held
