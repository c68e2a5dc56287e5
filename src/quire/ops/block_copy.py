"""KV blocks copied to rows of host memory and back by the native threads, with checksums."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from numpy.typing import NDArray

from quire import _native
from quire.core.dtypes import HostArray
from quire.ops.array import address

Move = tuple[int, NDArray[Any], bytes]
"""A block, the row that holds it or is to hold it, and the key that its checksum begins with."""


class BlockCopier:
    """Copies blocks of arrays, all of a block's parts to one row after the other.

    Every byte is read once, for the copy and for the checksum, and each block is one thread's.

    Args:
        arrays: [num_blocks, …]; a block of each is contiguous.
        threads: that copy.

    Attributes:
        block_bytes: of a row.
    """

    def __init__(self, arrays: Sequence[HostArray], threads: int) -> None:
        if not all(array[0].flags.c_contiguous for array in arrays):
            raise ValueError("a block must be contiguous")
        self._arrays = arrays  # the addresses are theirs
        self._parts = [(address(a), a[0].nbytes, a.strides[0]) for a in arrays]
        self._num_blocks = min(map(len, arrays), default=sys.maxsize)  # without arrays: empty
        self._pool = _native.Pool(threads)
        self.block_bytes = sum(nbytes for _, nbytes, _ in self._parts)

    def store(self, moves: Sequence[Move]) -> list[int]:
        """Copy blocks into their rows; returns the checksums, of 64 bits each."""
        return self._copy(moves, load=False)

    def load(self, moves: Sequence[Move]) -> list[int]:
        """Copy rows into their blocks. The checksums are those of `store` unless a row or key has
        changed; if one has, its block holds what the row does."""
        return self._copy(moves, load=True)

    def _copy(self, moves: Sequence[Move], *, load: bool) -> list[int]:
        for block, row, _ in moves:
            if not 0 <= block < self._num_blocks:
                raise IndexError(f"block {block} of {self._num_blocks}")
            if row.nbytes != self.block_bytes or not row.flags.c_contiguous:
                raise ValueError(f"a row of {row.nbytes} bytes for {self.block_bytes}")
        addresses = [(block, address(row), crc32(key)) for block, row, key in moves]
        return _native.copy_blocks(self._pool, self._parts, addresses, load)
