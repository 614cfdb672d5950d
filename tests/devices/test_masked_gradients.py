"""A NaN that a mask removes in the forward and in the backward pass, noticed only when the gradients are gone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan


class Attention(nn.Module):
    """Has a query that may attend to nothing: its row of the softmax is NaN. The second mask may remove it."""

    def __init__(self, has_second_mask: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4)
        self.has_second_mask = has_second_mask

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        scores = (self.q(x) @ self.k(x).transpose(1, 2)).masked_fill(~allowed, -torch.inf)
        weights = scores.softmax(-1)
        if self.has_second_mask:
            weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        return weights @ self.v(x)


@pytest.mark.parametrize(("has_second_mask", "origins"), [(True, []), (False, ["aten::_softmax"])])
def test_only_a_nan_that_no_mask_removes_is_reported(machine, device, has_second_mask, origins):
    """Fails if the gradients, which nothing has scanned, are taken for NaN because something before them was."""
    torch.manual_seed(0)
    model = Attention(has_second_mask).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    allowed = torch.ones(2, 4, 4, dtype=torch.bool)
    allowed[0, 3] = False
    allowed = allowed.to(device)
    with torchnan.detect(action="log") as watch:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(2, 4, 3).to(device), allowed).square().sum().backward()
            optimizer.step()
            machine.synchronize()
    assert [finding.op for finding in watch.findings] == origins
