"""Inductor compiles for the simulated device, and its kernels run in the order of the stream."""

from __future__ import annotations

import pytest
import torch

from tests.devices.conftest import NAME

pytestmark = pytest.mark.skipif(NAME != "lagging", reason="it is the simulated device that is tested")


def test_compiled_code_computes_on_the_device_when_its_turn_comes(machine, device, compiler):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
    x = torch.randn(16, 8).to(device)

    def gradients(run):
        run(x).square().mean().backward()
        made = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        return made

    compiled = torch.compile(model)
    gradients(compiled)
    expected = [gradient.cpu() for gradient in gradients(model)]
    made = []
    assert machine.count(lambda: made.extend(gradients(compiled))) == (0, 0)
    torch.testing.assert_close([gradient.cpu() for gradient in made], expected)


def test_random_numbers_are_drawn_when_they_are_asked_for(device):
    def draw():
        torch.manual_seed(1)
        return torch.rand(4, device=device), torch.rand(4, device=device)

    first, second = draw(), draw()
    torch.rand(4)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(first[0].cpu(), first[1].cpu())
