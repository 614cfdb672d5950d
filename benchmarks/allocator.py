"""Controls how glibc's malloc handles memory that a step frees, and reads the size of its heap.

By default it returns large blocks to the kernel and requests them again, depending on the layout of the heap: the same
step of the small GPT-2 takes 0 to 60,000 page faults, of which each thousand costs 2 ms. A single small allocation
changes the pattern for the rest of the process, so two rows may differ by several percent for an unrelated reason.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of <malloc.h>


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory, for the rest of the process. Does nothing without glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


class Heap(ctypes.Structure):
    """The result of ``mallinfo2()``, of <malloc.h>: bytes. ``arena`` is the heap, ``uordblks`` what is in use."""

    _fields_ = [
        ("arena", ctypes.c_size_t),
        ("_before", ctypes.c_size_t * 6),
        ("uordblks", ctypes.c_size_t),
        ("_after", ctypes.c_size_t * 2),
    ]


def heap() -> Heap:
    """Returns the size of malloc's heap. Needs glibc 2.33."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    size: Heap = mallinfo2()
    return size
