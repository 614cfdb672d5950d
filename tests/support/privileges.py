"""Permissions that hold for root too: tests of unreadable and unwritable files run as any user."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
VERSION_3 = 0x20080522  # of the kernel's interface: sets of 64 bits, as two entries


@contextlib.contextmanager
def permissions_enforced() -> Iterator[None]:
    """Takes from this thread the capabilities by which root reads and writes everything."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)  # of the calling thread
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the first 32, then the others

    def call(function: str) -> None:
        if getattr(libc, function)(header, sets) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    call("capget")
    effective = sets[0]
    sets[0] = effective & ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    call("capset")
    try:
        yield
    finally:
        sets[0] = effective
        call("capset")
