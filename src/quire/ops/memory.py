"""Memory of large tensors, on huge pages where Linux has them."""

from __future__ import annotations

import ctypes
import math
import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
_LEAST = 4 * HUGE_PAGE
"""Bytes of a tensor that asks for huge pages: of a smaller one they might back mostly nothing."""
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; not in Python's mmap."""


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialized CPU tensor whose pages are backed with RAM when they are first touched.

    A large one begins at a huge page and asks for more of them: a scattered read then rarely waits
    for an address to be translated, which costs most in virtual machines. In return each first
    touch takes 2 MiB of zeros. Where the system has no huge pages, or keeps none for those who ask,
    the tensor is like any other.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LEAST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    try:
        pages = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, OverflowError):  # a kernel without them, or too little memory: torch says so
        return torch.empty(shape, dtype=dtype)
    memory = torch.frombuffer(pages, dtype=torch.uint8)  # which keeps `pages` alive
    begin = -memory.data_ptr() % HUGE_PAGE
    return memory[begin : begin + nbytes].view(dtype).view(shape)


def back(tensor: Tensor) -> bool:
    """Let the system back a contiguous tensor with RAM now, changing nothing that it holds.

    Other threads of Python run meanwhile. False where the system cannot be asked.
    """
    begin = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    nbytes = tensor.data_ptr() + tensor.nbytes - begin
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return False
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(madvise(begin, nbytes, _MADV_POPULATE_WRITE) == 0)
