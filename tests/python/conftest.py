"""What every test starts from and must leave behind: detection off, nothing remembered, the same random state."""

from __future__ import annotations

import pytest
import torch

from torchnan._load import _C


@pytest.fixture(autouse=True)
def clean_slate():
    """Seeds, and fails a test that leaves detection on or tensors remembered."""
    torch.manual_seed(0)
    yield
    key = torch._C._parse_dispatch_key(_C.interceptor_key_name())
    assert _C.open_scopes() == 0
    assert not _C.anything_nonfinite()
    assert not torch._C._dispatch_tls_local_include_set().has(key)
