"""Memory of large arrays, on huge pages where Linux has them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap

import numpy as np

from quire.core.dtypes import DType, HostArray
from quire.ops.array import address
from quire.ops.plans.arena import ALIGNMENT

HUGE_PAGE = 2 << 20
_LEAST = 4 * HUGE_PAGE
"""Bytes of an array that asks for huge pages: of a smaller one they might back mostly nothing."""
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; not in Python's mmap."""


def empty(shape: tuple[int, ...], dtype: DType) -> HostArray:
    """Return an uninitialized array whose pages are backed with RAM when they are first touched.

    A large one begins at a huge page and asks for more of them: a scattered read then rarely waits
    for an address to be translated, which costs most in virtual machines. In return each first
    touch takes 2 MiB of zeros. If the system has no huge pages, or reserves none for such requests,
    the array is like any other. It begins at a multiple of `ALIGNMENT`.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LEAST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _aligned(shape, dtype, nbytes)
    try:
        pages = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, OverflowError):  # a kernel without them, or too little memory: numpy says so
        return _aligned(shape, dtype, nbytes)
    memory = np.frombuffer(pages, np.uint8)  # which keeps `pages` alive
    begin = -address(memory) % HUGE_PAGE
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


class SharedArrays:
    """Arrays in a file that several processes map.

    The n-th call of `empty` returns the same memory in each process, if all make equal calls. An
    array begins at a huge page; Linux uses those where `shmem_enabled` is "advise" or more.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._end = 0

    def empty(self, shape: tuple[int, ...], dtype: DType) -> HostArray:
        """Return the next array; its pages are backed when they are first touched."""
        nbytes = math.prod(shape) * dtype.itemsize
        size = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        with open(self._path, "r+b") as file:
            pages = mmap.mmap(file.fileno(), size, offset=self._end)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                pages.madvise(mmap.MADV_HUGEPAGE)
        self._end += size
        return np.frombuffer(pages, np.uint8)[:nbytes].view(dtype).reshape(shape)


def _aligned(shape: tuple[int, ...], dtype: DType, nbytes: int) -> HostArray:
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    begin = -address(memory) % ALIGNMENT
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


def back(array: HostArray) -> bool:
    """Let the system back a contiguous array with RAM now, changing nothing that it holds.

    Other threads of Python run meanwhile. False where the system cannot be asked.
    """
    first = address(array)
    begin = first // mmap.PAGESIZE * mmap.PAGESIZE
    nbytes = first + array.nbytes - begin
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return False
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(madvise(begin, nbytes, _MADV_POPULATE_WRITE) == 0)
