"""A mask made by log(0) that is only compared, as ``nn.Transformer`` does, is not an accident."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan


def mask():
    return torch.log(torch.tril(torch.ones(5, 5)))


def causal():
    return torch.full((5, 5), -torch.inf).triu(1)


def found(use):
    with torchnan.detect(action="log") as watch:
        kept = mask()
        use(kept)
    return [(finding.op, finding.harm.kind) for finding in watch.findings]


@pytest.mark.parametrize("train", [True, False])
def test_a_mask_that_a_transformer_recognizes_as_causal_is_silent(train):
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=8)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).train(train)
    assert found(lambda kept: encoder(torch.randn(5, 2, 8), mask=kept)) == []


def test_a_mask_that_equals_another_is_silent():
    assert found(lambda kept: (kept == causal()).all()) == []


@pytest.mark.parametrize(
    "check",
    [
        lambda kept: kept.isfinite().all(),
        lambda kept: kept.isnan().any(),
        lambda kept: (kept == -torch.inf).any(),
        lambda kept: (kept == torch.zeros(5, 5)).all(),
        lambda kept: kept < causal(),
    ],
    ids=["isfinite", "isnan", "infinity", "zeros", "order"],
)
def test_another_comparison_says_nothing_of_a_mask(check):
    assert found(check) == [("aten::log", "alive")]


def test_a_mask_that_makes_a_nan_is_an_accident_although_it_was_compared():
    def use(kept):
        assert (kept == causal()).all()
        (kept - kept).sum().item()

    assert ("aten::log", "read") in found(use)
