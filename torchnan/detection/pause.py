"""Pauses detection while torchnan itself works with tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from torchnan._load import _C


@contextlib.contextmanager
def detection_paused() -> Iterator[None]:
    """Runs the block below the interceptor on this thread: torchnan's own operations do not belong to the user."""
    if _C.open_scopes() == 0:
        yield
        return
    key = torch._C._parse_dispatch_key(_C.interceptor_key_name())
    assert key is not None
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        yield
