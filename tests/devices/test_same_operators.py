"""A training step calls the same operators with and without detection, on the host and on a device.

Autograd copies a gradient to which something else refers, and adds to one in place only if nothing else holds its
storage: a detector that keeps tensors or storages changes what it does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchnan
from benchmarks.gpu import models

WARM_UP = 3


def gpt2(device: torch.device) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = models.GPT2(layers=3, width=64, heads=4, words=512, tokens=32).to(device)
    ids = torch.randint(0, 512, (2, 32)).to(device)

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    return model, loss


def resnet50(device: torch.device) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = models.resnet50_model().to(device)
    pixels, labels = torch.randn(2, 3, 64, 64).to(device), torch.randint(0, 1000, (2,)).to(device)
    return model, lambda: functional.cross_entropy(model(pixels).float(), labels)


def llama(device: torch.device) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=128)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)).to(device)
    ids = torch.randint(0, 128, (2, 16)).to(device)
    return model, lambda: model(input_ids=ids, labels=ids).loss


def operators_of(step: Callable[[], None]) -> list[str]:
    with torch.autograd.profiler.profile() as profile:
        step()
    events = sorted(profile.function_events, key=lambda event: (event.time_range.start, -event.time_range.end))
    return [event.name for event in events]


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("make", [gpt2, resnet50, llama])
def test_a_step_calls_the_same_operators_with_and_without_detection(machine, device, make, where):
    torch.manual_seed(0)
    model, loss = make(torch.device("cpu") if where == "host" else device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    plain = operators_of(step)
    with torchnan.detect(action="log") as watch:
        for _ in range(WARM_UP):
            step()
        machine.synchronize()
        watched = operators_of(step)
        machine.synchronize()
        stats = watch.stats()
    assert watch.findings == []
    assert stats["checked"] > 100
    assert watched == plain
