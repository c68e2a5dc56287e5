"""Threads of numpy's BLAS, which has a pool of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SET = (
    *("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"),  # numpy's wheels
    *("openblas_set_num_threads64_", "openblas_set_num_threads"),  # numpy on the system's OpenBLAS
)


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let numpy's OpenBLAS use `count` threads meanwhile, process-wide; then as many as before.

    Numpy has no function for that, and BLAS reads environment variables only when it loads. Another
    BLAS keeps its number of threads.
    """
    change, before = _set_threads(), current_blas_threads()
    change(count)
    try:
        yield
    finally:
        change(before)


def current_blas_threads() -> int:
    """Return the threads of numpy's OpenBLAS, or 0 with another BLAS."""
    for name in _SET:
        with suppress(AttributeError):
            found: int = getattr(_library(), name.replace("_set_", "_get_"))()
            return found
    return 0


def _set_threads() -> Callable[[int], object]:
    for name in _SET:
        with suppress(AttributeError):
            found: Callable[[int], object] = getattr(_library(), name)
            return found
    return lambda count: None


def _library() -> ctypes.CDLL:
    """Open numpy's linear algebra: symbols are looked up in the libraries that it is linked to."""
    from numpy.linalg import _umath_linalg

    return ctypes.CDLL(_umath_linalg.__file__)
