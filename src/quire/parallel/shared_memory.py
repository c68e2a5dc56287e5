"""Memory that processes share: a file without a name, so that nothing is left of it when they end,
however they do."""

from __future__ import annotations

import mmap
import os

ROOM = 2**44
"""Bytes of a named file. Only pages that were written take memory."""
_named: dict[str, int] = {}


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


def named_file(name: str) -> str:
    """Return the path of this process's memory file of that name, for its children.

    The file is made at the first call, and lives until `close_named_file` or the process's end.
    """
    if name not in _named:
        _named[name] = anonymous_file(ROOM)
    return f"/proc/{os.getpid()}/fd/{_named[name]}"


def empty_named_file(name: str) -> None:
    """Free the memory of that file, which nobody uses now."""
    if name in _named:
        os.ftruncate(_named[name], 0)
        os.ftruncate(_named[name], ROOM)


def close_named_file(name: str) -> None:
    """Forget that file. Its memory is free when no process maps it."""
    if name in _named:
        os.close(_named.pop(name))


def whole_pages(nbytes: int) -> int:
    """Return the bytes, rounded up to what can be mapped apart."""
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
