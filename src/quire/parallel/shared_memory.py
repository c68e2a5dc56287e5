"""Memory that processes share: a file without a name, so that nothing is left of it when they end,
however they do."""

from __future__ import annotations

import mmap
import os

ROOM = 2**44
"""Bytes of a `SharedFile`. Only pages that were written take memory."""


def anonymous_file(nbytes: int) -> int:
    """Return the descriptor of a file of zeros in memory, which children inherit and map.

    Where the system has none in memory, it is one in the temporary folder, removed already.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("quire-ranks")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd


class SharedFile:
    """A file in memory that other processes of this user open, while this one holds it open.

    Attributes:
        path: where they find it.
    """

    def __init__(self) -> None:
        self._fd = anonymous_file(ROOM)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def empty(self) -> None:
        """Free its memory, which nobody uses now."""
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, ROOM)

    def close(self) -> None:
        """Let go of the file, whose memory is free when no process maps it. May be repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def whole_pages(nbytes: int) -> int:
    """Return the bytes, rounded up to what can be mapped apart."""
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
