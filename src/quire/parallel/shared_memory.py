"""Memory that processes share: a file without a name, so that nothing is left of it when they end,
however they do."""

from __future__ import annotations

import mmap
import os
import tempfile


def anonymous_file(nbytes: int) -> int:
    """Return the descriptor of a file of zeros in memory, which children inherit and map.

    Where the system has none in memory, it is one in the temporary folder, removed already.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("quire-ranks")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd


def whole_pages(nbytes: int) -> int:
    """Return the bytes, rounded up to what can be mapped apart."""
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
