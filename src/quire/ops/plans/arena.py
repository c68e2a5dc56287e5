"""Where in one piece of memory the intermediate results of a plan lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64
"""Bytes: of a cache line, and of the widest vectors."""


class Lifetime(NamedTuple):
    """A buffer is written by op `first` and last read by op `last`, both included."""

    nbytes: int
    first: int
    last: int


def assign_offsets(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return an aligned offset for each buffer, and the bytes that all of them need.

    Buffers that live at the same time do not overlap. The largest is placed first, each at the
    lowest offset that is free throughout its life ("greedy by size", Pisarchyk and Lee 2020).
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].nbytes):
        new = lifetimes[index]
        taken = sorted(
            (offsets[i], offsets[i] + aligned(lifetimes[i].nbytes))
            for i in placed
            if lifetimes[i].first <= new.last and new.first <= lifetimes[i].last
        )
        offset = 0
        for begin, end in taken:
            if begin - offset >= new.nbytes:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append(index)
        total = max(total, offset + aligned(new.nbytes))
    return offsets, total


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
