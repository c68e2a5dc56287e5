"""The C library's heap."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Let the threads that are started from now on allocate where the others do.

    glibc gives each thread a heap of its own, so that none waits for another, and each keeps about
    as many bytes as it ever held. Threads that take turns at Python's lock gain nothing from that,
    and the process grows with each coincidence of what they hold. Another C library than glibc has
    no such heaps, and is left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_ARENA_MAX, 1)


def return_memory() -> None:
    """Give the system what is free: glibc would keep it.

    The objects that held it may hold each other, so that Python's search for garbage comes first.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
