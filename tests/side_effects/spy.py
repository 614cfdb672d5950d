"""A program that looks for torchnan, and then changes every facet: the comparison must notice each."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import warnings

import torch

from tests.side_effects.program import program

kept = []


@program(into={})
def spy(record, bad):
    if "torchnan" not in sys.modules:
        return
    record.value("seen", 1)
    record.call("seen")
    with record.catching("seen"):
        raise ValueError
    torch.rand(1)
    torch.compile(torch.sin)(torch.ones(2))
    kept.append(torch.ones(2))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    kept.append(open(os.devnull))  # noqa: SIM115
    signal.signal(signal.SIGUSR1, print)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.double)
    warnings.warn("seen", stacklevel=1)
    print("seen")
    atexit.register(os._exit, 3)
