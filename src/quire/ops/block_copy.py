"""KV blocks copied to rows of host memory and back by the native threads, with checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import torch
from numpy.typing import NDArray
from torch import Tensor

from quire import _native

Move = tuple[int, NDArray[Any], bytes]
"""A block, the row that holds it or is to hold it, and the key that its checksum begins with."""
STAGED_BLOCKS = 16
"""Blocks that pass through the host at once, between another device and their rows."""


class BlockCopier:
    """Copies blocks of tensors, all of a block's parts to one row after the other.

    Every byte is read once, for the copy and for the checksum, and each block is one thread's.

    Args:
        tensors: on the CPU, [num_blocks, …]; a block of each is contiguous.
        threads: that copy.

    Attributes:
        block_bytes: of a row.
    """

    def __init__(self, tensors: Sequence[Tensor], threads: int) -> None:
        for tensor in tensors:
            if not (tensor.device.type == "cpu" and tensor[0].is_contiguous()):
                raise ValueError("a block must be contiguous, and in the CPU's memory")
        self._tensors = tensors  # the addresses are theirs
        self._parts = [(t.data_ptr(), t[0].nbytes, t.stride(0) * t.element_size()) for t in tensors]
        self._num_blocks = min(len(tensor) for tensor in tensors)
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
        addresses = [(block, row.ctypes.data, crc32(key)) for block, row, key in moves]
        return _native.copy_blocks(self._pool, self._parts, addresses, load)


class StagedCopier:
    """`BlockCopier` for tensors on another device: some blocks at a time pass through tensors on
    the host, which that copies and checks.

    Args:
        tensors: [num_blocks, …], contiguous.
    """

    def __init__(self, tensors: Sequence[Tensor], threads: int) -> None:
        self._tensors = [tensor.view(torch.uint8) for tensor in tensors]  # torch copies no float8
        self._staging = [
            torch.empty(STAGED_BLOCKS, *tensor.shape[1:], dtype=torch.uint8)
            for tensor in self._tensors
        ]
        self._copier = BlockCopier(self._staging, threads)
        self.block_bytes = self._copier.block_bytes

    def store(self, moves: Sequence[Move]) -> list[int]:
        """See `BlockCopier.store`."""
        sums: list[int] = []
        for some, staged, blocks in self._batches(moves):
            for tensor, stage in zip(self._tensors, self._staging, strict=True):
                stage[: len(some)].copy_(tensor[blocks])
            sums += self._copier.store(staged)
        return sums

    def load(self, moves: Sequence[Move]) -> list[int]:
        """See `BlockCopier.load`."""
        sums: list[int] = []
        for some, staged, blocks in self._batches(moves):
            sums += self._copier.load(staged)
            for tensor, stage in zip(self._tensors, self._staging, strict=True):
                tensor[blocks] = stage[: len(some)].to(tensor.device)
        return sums

    def _batches(
        self, moves: Sequence[Move]
    ) -> Iterator[tuple[Sequence[Move], list[Move], Tensor]]:
        """Some moves at a time; the same from or to staged blocks; their own, on the device."""
        device = self._tensors[0].device
        for begin in range(0, len(moves), STAGED_BLOCKS):
            some = moves[begin : begin + STAGED_BLOCKS]
            staged = [(place, row, key) for place, (_, row, key) in enumerate(some)]
            yield some, staged, torch.tensor([block for block, _, _ in some]).to(device)


def open_copier(tensors: Sequence[Tensor], threads: int) -> BlockCopier | StagedCopier:
    """Return a copier for tensors [num_blocks, …] where they are."""
    on_host = tensors[0].device.type == "cpu"
    return BlockCopier(tensors, threads) if on_host else StagedCopier(tensors, threads)
