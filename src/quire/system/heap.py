"""The C library's heap."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Let threads started from now on share one malloc arena.

    By default glibc gives each thread an arena, and each arena stays at its peak size. Threads that
    share the GIL gain nothing from that, and the process grows. Other C libraries have no arenas.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_ARENA_MAX, 1)


def return_memory() -> None:
    """Do what `trim_heap` does, after garbage collection: reference cycles may hold memory."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return the heap's free memory to the system; by default glibc keeps it."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
