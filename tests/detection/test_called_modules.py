"""Which modules hold a weight: all objects of the process are looked through only for what is not known yet."""

from __future__ import annotations

import torch

from torchnan.detection.compiled.called_modules import _Holders


def test_a_known_holder_is_found_without_another_look(monkeypatch):
    layer = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(layer)
    known = _Holders()
    assert known.of(id(layer.weight), "weight") == [layer]
    assert known.of(layer, "0") == [model]
    monkeypatch.setattr(_Holders, "_look_everywhere", lambda self: 1 / 0)
    assert _Holders().of(id(layer.weight), "weight") == [layer]
    assert _Holders().of(layer, "0") == [model]


def test_a_holder_that_has_given_its_weight_away_is_none():
    layer, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    weight = layer.weight
    assert _Holders().of(id(weight), "weight") == [layer]
    layer.weight = torch.nn.Parameter(torch.ones(2, 2))
    assert _Holders().of(id(weight), "weight") == []
    other.weight = weight
    assert _Holders().of(id(weight), "weight") == [other]
    assert _Holders().of(id(weight), "bias") == []


def test_each_module_that_shares_a_weight_is_a_holder():
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    layers[1].weight = layers[0].weight
    found = _Holders().of(id(layers[0].weight), "weight")
    assert len(found) == 2
    assert all(any(one is layer for one in found) for layer in layers)
