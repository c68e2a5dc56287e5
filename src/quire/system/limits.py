"""Limits of this process's resources."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def bound(what: int, most: int) -> None:
    """Limit a resource to `most`, or to the process's hard limit if that is lower."""
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, hard))


@contextmanager
def memory_bounded(more: int) -> Iterator[None]:
    """Let the block allocate `more` bytes beyond what the process has; then raise MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    soft = before[0]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    bound(resource.RLIMIT_AS, most if soft == resource.RLIM_INFINITY else min(most, soft))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
