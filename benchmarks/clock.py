"""Measures a step in seconds, or in processor cycles of its thread.

Cycles exclude the time that other processes take on a busy machine, but not their effect on its caches. Steps of
several threads wait for each other, so use one thread with cycles.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable

SYS_PERF_EVENT_OPEN = 298  # on x86-64
HARDWARE, CYCLES, USER_ALONE = 0, 0, 1 << 5 | 1 << 6  # perf_event_attr: type, config, exclude_kernel and exclude_hv
ATTRIBUTE_BYTES = 112

seconds = time.perf_counter


def open_cycles() -> Callable[[], float]:
    """Returns a clock of this thread's cycles in user mode. Raises OSError if the kernel forbids it."""
    fields = struct.pack("=IIQQQQQ", HARDWARE, ATTRIBUTE_BYTES, CYCLES, 0, 0, 0, USER_ALONE)
    attribute = ctypes.create_string_buffer(fields, ATTRIBUTE_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    counter = libc.syscall(SYS_PERF_EVENT_OPEN, attribute, 0, -1, -1, 0)
    if counter < 0:
        reason = os.strerror(ctypes.get_errno())
        raise OSError(f"cycles cannot be counted here: {reason}. Measure seconds, or lower kernel.perf_event_paranoid")
    return lambda: float(struct.unpack("=Q", os.read(counter, 8))[0])
