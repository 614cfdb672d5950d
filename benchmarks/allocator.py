"""What glibc's malloc does with memory that a step frees.

By default it returns large blocks to the kernel and gets them again, depending on how the heap happens to lie: the
same step of the small GPT-2 takes 0 to 60,000 page faults, of which each thousand costs 2 ms. A single small
allocation changes the pattern for as long as the process lives, so that two rows differ by several percent for no
reason of theirs.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of <malloc.h>


def keep_freed_memory() -> None:
    """Lets malloc keep what is freed, for the rest of the process. Changes nothing where there is no glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
