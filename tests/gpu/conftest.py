"""Tests that need a GPU. Without one they are skipped, and fail under TORCHNAN_REQUIRE_CUDA=1."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu():
    if not torch.cuda.is_available():
        stop = pytest.fail if os.environ.get("TORCHNAN_REQUIRE_CUDA") == "1" else pytest.skip
        stop("PyTorch sees no GPU here; TORCHNAN_REQUIRE_CUDA=1 makes this a failure")
