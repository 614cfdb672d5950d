"""Process groups on a device of which this process is the first rank; the collectives do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def simulated_ranks(device: torch.device, count: int) -> Iterator[None]:
    """Initializes the default process group for a while."""
    torch.distributed.init_process_group(f"{device.type}:fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
