"""Work on large arrays: some rows at a time, on all cores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from quire.system.hardware import detect


def for_chunks(count: int, size: int, work: Callable[[slice], None]) -> None:
    """Call `work` with slices of at most `size` that cover range(count); re-raise its error.

    Numpy releases the interpreter's lock while it computes. Each slice is computed by one thread,
    so results do not depend on the number of threads. A single slice needs no other thread.
    """
    slices = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    if len(slices) == 1:
        work(slices[0])
        return
    with ThreadPoolExecutor(detect().cores) as threads:
        for _ in threads.map(work, slices):
            pass
