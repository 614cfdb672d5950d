"""Batch norm on a device, which updates running statistics besides its results."""

from __future__ import annotations

import torch
from torch import nn

import torchnan


def test_running_statistics_wait_for_other_results(machine, device):
    """Fails if each batch norm of a forward pass launches a scan of its own."""
    model = nn.Sequential(*[nn.BatchNorm1d(16) for _ in range(4)]).to(device)
    x = torch.randn(8, 16).to(device)
    with torchnan.detect(action="log") as watch:
        model(x)
        assert machine.trace(lambda: model(x)).scans <= 1  # of the statistics that the second pass overwrites
        before = watch.stats()["device_bytes"]
        y = model(x)
        assert watch.stats()["device_bytes"] - before >= 4 * 3 * 16 * 4  # a mean and two statistics each
        y.sum().item()
    assert watch.findings == []


def test_a_running_mean_that_overflows_is_the_origin(machine, device):
    normalise = nn.BatchNorm1d(4, momentum=-1.0).to(device)
    normalise.running_mean.fill_(3e38)
    x = torch.randn(8, 4).to(device)
    with torchnan.detect(action="log") as watch:
        normalise(x)
        normalise.running_mean.sum().item()
    origin = watch.findings[0]
    assert (origin.op, origin.kind) == ("aten::native_batch_norm", "inf")
