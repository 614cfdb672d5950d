"""The search for the module that owns a parameter."""

from __future__ import annotations

import torch

import torchnan
from torchnan.detection import introspection


# Fails when the objects of the interpreter are searched for the name of each parameter.
def test_parameters_of_one_model_are_named_by_one_search(monkeypatch):
    searches = []
    search = introspection._modules_of_program
    monkeypatch.setattr(introspection, "_modules_of_program", lambda: searches.append(None) or search())
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))]
    model, x = torch.nn.Sequential(*layers), torch.randn(4, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    with torchnan.detect(action="log") as watch:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float("nan"))
        model(x).square().mean().backward()
        optimizer.step()
    assert {finding.name for finding in watch.findings} == {name for name, _ in model.named_parameters()}
    assert len(searches) == 1
