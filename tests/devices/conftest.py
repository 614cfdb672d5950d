"""The same tests on the device that lags, which is everywhere, and on a GPU: `TEST_DEVICE=cuda`."""

from __future__ import annotations

import os

import pytest
import torch

from tests.devices.lagging import SCANNER
from tests.devices.simulated_ranks import simulated_ranks

NAME = os.environ.get("TEST_DEVICE", "lagging")

# For tests that count or refuse launches of the kernel, or the operators that a profiler shows.
of_kernel = pytest.mark.skipif(SCANNER != "kernel", reason="operations of PyTorch scan here")


@pytest.fixture(scope="session")
def machine():
    """The functions of the device: `synchronize()`, `count()`."""
    if NAME == "cuda":
        assert torch.cuda.is_available(), "TEST_DEVICE=cuda, and PyTorch sees no GPU here"
        from tests.devices.cuda_device import Cuda

        return Cuda()
    from tests.devices.lagging import Lagging

    return Lagging()


@pytest.fixture
def device(machine):
    machine.synchronize()
    return torch.device(f"{NAME}:0")


@pytest.fixture
def compiler(machine):
    """Lets Inductor compile for the device."""
    if NAME == "lagging":
        from tests.devices.compiler import register

        register(machine)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def two_ranks(device):
    with simulated_ranks(device, 2):
        yield
