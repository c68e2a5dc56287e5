"""KV blocks of tensors copied to rows of host memory and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from quire.ops.block_copy import BlockCopier, Move
from quire.ops.torch_ops.arrays import array

STAGED_BLOCKS = 16
"""Blocks that pass through the host at once, between another device and their rows."""


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
        self._copier = BlockCopier([array(stage) for stage in self._staging], threads)
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
        """Yield some moves, the same from or to staged blocks, and the blocks on the device."""
        device = self._tensors[0].device
        for begin in range(0, len(moves), STAGED_BLOCKS):
            some = moves[begin : begin + STAGED_BLOCKS]
            staged = [(place, row, key) for place, (_, row, key) in enumerate(some)]
            yield some, staged, torch.tensor([block for block, _, _ in some]).to(device)


def open_tensor_copier(tensors: Sequence[Any], threads: int) -> BlockCopier | StagedCopier:
    """Return a copier for tensors [num_blocks, …] where they are."""
    if tensors[0].device.type == "cpu":
        return BlockCopier([array(tensor) for tensor in tensors], threads)
    return StagedCopier(tensors, threads)
