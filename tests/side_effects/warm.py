"""Imports what programs need, and compiles a function, once for all processes that are forked afterwards."""

from __future__ import annotations

import os
import tempfile

import numpy  # noqa: F401
import torch
import torch._inductor.compile_fx
import torch.utils.checkpoint
from torch._dynamo.utils import clear_compilation_metrics, compilation_time_metrics, counters
from torch._inductor import metrics

# Inductor calls PyTorch's operators instead of generating kernels: it compiles in a fraction of the time.
ONE_THREAD = {"compile_threads": 1}
QUICK = {**ONE_THREAD, **torch._inductor.list_mode_options("lite")}


def _compile_once() -> None:
    """Leaves no trace but what is imported and cached. Without a backward pass, whose threads a fork would lose."""
    with tempfile.TemporaryDirectory() as folder, torch._inductor.config.patch(QUICK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        with torch.no_grad():
            torch.compile(lambda x: x.log().sum())(torch.ones(3))
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    torch._dynamo.reset()
    for state in (counters, compilation_time_metrics):
        state.clear()
    clear_compilation_metrics()
    metrics.reset()


_compile_once()
