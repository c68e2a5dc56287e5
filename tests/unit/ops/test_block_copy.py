"""Blocks copied natively: the same bytes and checksums with any threads, and damage shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.ops.block_copy import Move
from tests.native import BlockCopier

BLOCKS = 9


def tensors() -> list[Tensor]:
    """Of block sizes that are no multiples of 32 bytes, one a view with other things between."""
    made = [torch.randn(BLOCKS, 3, 8), torch.rand(BLOCKS, 12).bfloat16()]
    return [*made, torch.randint(-9, 9, (BLOCKS, 2, 40), dtype=torch.int8)[:, 1]]


def rows(copier: BlockCopier) -> list[Move]:
    """One for each block, in another order."""
    return [
        (block, np.empty(copier.block_bytes, np.uint8), b"%d" % block)
        for block in np.random.default_rng(0).permutation(BLOCKS).tolist()
    ]


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_come_back_with_the_same_checksums(threads: int) -> None:
    parts = tensors()
    before = [part.clone() for part in parts]
    copier = BlockCopier(parts, threads)
    moves = rows(copier)
    sums = copier.store(moves)
    assert sums == BlockCopier(parts, 1).store(moves)
    assert len(set(sums)) == BLOCKS
    for block, row, _ in moves:
        together = [part[block].reshape(-1).view(torch.uint8).numpy() for part in parts]
        assert np.array_equal(row, np.concatenate(together))
    for part in parts:
        part.zero_()
    assert copier.load(moves) == sums
    assert all(torch.equal(part, old) for part, old in zip(parts, before, strict=True))


def test_every_changed_bit_and_another_key_show() -> None:
    copier = BlockCopier(tensors(), 1)
    block, row, key = move = rows(copier)[0]
    (checksum,) = copier.store([move])
    for at in range(0, copier.block_bytes, 7):
        row[at] ^= 1 << at % 8
        assert copier.load([move]) != [checksum]
        row[at] ^= 1 << at % 8
    assert copier.load([(block, row, key + b"x")]) != [checksum]
    assert copier.load([move]) == [checksum]


def test_what_does_not_fit_is_refused() -> None:
    copier = BlockCopier(tensors(), 1)
    row = np.empty(copier.block_bytes, np.uint8)
    with pytest.raises(IndexError, match="block 9 of 9"):
        copier.store([(BLOCKS, row, b"")])
    with pytest.raises(ValueError, match="a row of"):
        copier.store([(0, row[1:], b"")])
    with pytest.raises(ValueError, match="contiguous"):
        BlockCopier([torch.zeros(4, 8, 8).transpose(1, 2)], 1)
