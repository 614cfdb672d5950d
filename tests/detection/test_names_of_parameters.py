"""The search for the module that owns a parameter."""

from __future__ import annotations

import torch

import torchnan
from torchnan.detection import introspection, tensor_names


def recorded(monkeypatch, module, name):
    """Returns a list that grows with every call of a function."""
    calls = []
    function = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: calls.append(None) or function(*arguments))
    return calls


# Fails when the objects of the interpreter, or the modules of the model, are searched again for each parameter.
def test_parameters_of_one_model_are_named_by_one_search(monkeypatch):
    searches = recorded(monkeypatch, introspection, "_modules_of_program")
    walks = recorded(monkeypatch, tensor_names, "walk")
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
    assert (len(searches), len(walks)) == (1, 1)


def name_of_nan_weight(model, weight):
    with torch.no_grad():
        weight[0] = float("nan")
    with torchnan.detect(action="log") as watch:
        model(torch.randn(2, 4)).mean().backward()
    return watch.first.name


def test_a_name_that_was_known_is_not_believed_when_the_modules_have_changed():
    model = torch.nn.Sequential()
    model.add_module("first", torch.nn.Linear(4, 4))
    assert name_of_nan_weight(model, model.first.weight) == "first.weight"
    moved = model.first
    del model.first
    model.add_module("renamed", moved)
    assert name_of_nan_weight(model, moved.weight) == "renamed.weight"
    model.renamed.weight = torch.nn.Parameter(torch.zeros(4, 4))
    assert name_of_nan_weight(model, model.renamed.weight) == "renamed.weight"


def test_parameters_that_were_exchanged_have_each_other_s_names():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    assert name_of_nan_weight(model, model[1].weight) == "1.weight"
    model[0].weight, model[1].weight = model[1].weight, torch.nn.Parameter(torch.zeros(4, 4))
    assert name_of_nan_weight(model, model[0].weight) == "0.weight"


def test_of_parameters_that_share_memory_the_one_with_the_value_is_named():
    """Parts of one flat tensor, as FSDP and DeepSpeed make them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    for parameter, part in zip(model.parameters(), flat.split([16, 4, 16, 4]), strict=True):
        parameter.data = part.view_as(parameter)
    assert name_of_nan_weight(model, model[1].weight) == "1.weight"
    model[1].weight.data[0] = 0
    assert name_of_nan_weight(model, model[0].bias) == "0.bias"


def test_a_model_names_a_parameter_before_a_list_of_parameters_does():
    """The composable ``replicate()`` keeps such a list. Fails when the search takes whichever it finds first."""
    layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    lists = [torch.nn.ParameterList(parameters), torch.nn.ParameterDict({"some": parameters[2]})]
    model = torch.nn.Sequential(*layers)
    lists.append(torch.nn.DataParallel(torch.nn.ParameterList(parameters)))  # wrapped, as there
    with torchnan.detect(action="log") as watch:
        torch.nn.functional.linear(torch.full((2, 4), float("inf")), model[1].weight).sum().backward()
        torch.optim.SGD(parameters, 0.1).step()
    assert {finding.harm.name for finding in watch.findings} >= {"1.weight"}
    assert not {"0", "2", "some"} & {finding.harm.name for finding in watch.findings}
