"""The resident memory of this process."""

from __future__ import annotations

import os
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

RUNTIME_STEP = 64 * 2**20
"""Resident memory is rounded up to this, so that the same start gives the same block count."""


def resident_bytes(held: int = 0) -> int:
    """Return `resident_now` without `held` bytes of weights, rounded up."""
    return rounded(resident_now() - held)


def resident_now() -> int:
    """Return the resident bytes of this process; 0 if the system does not report them."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class ResidentParts:
    """Divides this process's resident memory into parts by when it came.

    Attributes:
        parts: part → its bytes, in order.
    """

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        self._before = 0

    def lap(self, part: str, besides: int = 0) -> None:
        """Add the growth since the last lap, less the bytes `besides`, to `part`."""
        now = resident_now() - besides
        self.parts[part] = now - self._before
        self._before = now

    def __str__(self) -> str:
        peak = max(self._before, 1024 * getrusage(RUSAGE_SELF).ru_maxrss)
        parts = ", ".join(f"{part} {size / 2**20:,.0f}" for part, size in self.parts.items())
        return f"resident {self._before / 2**20:,.0f} MiB, at most {peak / 2**20:,.0f}: {parts}"


def rounded(held: int) -> int:
    """Return the bytes, rounded up to a multiple of `RUNTIME_STEP`."""
    return -(-max(0, held) // RUNTIME_STEP) * RUNTIME_STEP
