"""What the processes that compute a model together tell each other (tensor parallelism)."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from quire import _native
from quire.ops.native import NativeKernels
from quire.ops.native_checks import describe, indices, matrix, view
from quire.ops.native_gemm import PackedLinear
from quire.ops.rank_memory import rank_group_bytes


class RankGroup:
    """A rank's end of the memory in which its group meets.

    Args:
        memory: descriptor of a file of `rank_group_bytes(ranks)` zeros, the same for all ranks.

    Attributes:
        rank, ranks: which of how many.
    """

    def __init__(self, memory: int, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        pages = mmap.mmap(memory, rank_group_bytes(ranks))
        self._memory = torch.frombuffer(pages, dtype=torch.uint8)  # which keeps `pages` alive
        self._handle = _native.RankGroup(self._memory.data_ptr(), rank, ranks)

    def begin(self, step: int) -> None:
        """A step begins: its number is above the last one's, and the same on all ranks, of which
        none is still in the last one. What failed there counts no more."""
        self._handle.begin(step)

    def fail(self) -> None:
        """This rank ends the step here: whoever waits for it gets a RuntimeError."""
        self._handle.fail()

    def lose(self) -> None:
        """A rank is gone: whoever waits, from now on, gets a RuntimeError."""
        self._handle.lose()

    def waited(self) -> list[float]:
        """Seconds that each rank has waited for others since it began."""
        return [1e-9 * self._handle.waited(rank) for rank in range(self.ranks)]

    def all_reduce(
        self, kernels: NativeKernels, pool: _native.Pool, x: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """`Ops.all_reduce`: summed in the order of the ranks, so that all get the same
        bits. Every rank calls it with the same shape.

        Raises:
            ValueError: x is not a contiguous float32 matrix.
            RuntimeError: another rank has failed, or is gone.
        """
        _check(x)
        y = torch.empty(x.shape, dtype=dtype)
        _native.all_reduce(kernels.handle, pool, self._handle, view(y), view(x))
        return y

    def vocab_embedding(
        self,
        pool: _native.Pool,
        ids: Tensor,
        table: Tensor | PackedLinear,
        first: int,
        vocab: int,
    ) -> Tensor:
        """`Ops.vocab_embedding`: each row from the rank that has it, to the bit. Every
        rank calls it with the same ids.

        Raises:
            ValueError: ids or table are of another dtype or layout.
            IndexError: an id is not below `vocab`.
            RuntimeError: another rank has failed, or is gone.
        """
        rows = indices("ids", ids)
        y = torch.empty(ids.numel(), table.shape[1], dtype=table.dtype)
        given, weight = None, None
        if isinstance(table, PackedLinear):
            weight = table.packed
        else:
            given = matrix("table", table)
        _native.embedding(pool, self._handle, view(y), rows, given, weight, first, vocab)
        return y

    def all_gather(self, pool: _native.Pool, x: Tensor, first: int, width: int) -> Tensor:
        """`Ops.all_gather`; the ranks' columns do not overlap, and are all of `width`.

        Raises:
            ValueError: x is not a contiguous float32 matrix, or lies beyond `width`.
            RuntimeError: another rank has failed, or is gone.
        """
        _check(x)
        y = torch.empty(x.shape[0], width)
        _native.all_gather(pool, self._handle, view(y), view(x), first)
        return y


def _check(x: Tensor) -> None:
    if x.dtype != torch.float32 or not x.is_cpu or x.ndim != 2 or not x.is_contiguous():
        raise ValueError(f"x is {describe(x)}; wanted a contiguous float32 [rows, cols]")
