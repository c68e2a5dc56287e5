"""What the processes that compute a model together tell each other (tensor parallelism)."""

from __future__ import annotations

import mmap

import numpy as np

from quire import _native
from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.ops.array import address
from quire.ops.native.checks import contiguous, describe, indices, matrix, view
from quire.ops.native.gemm import PackedLinear
from quire.ops.native.kernels import Kernels, Pool
from quire.ops.rank_memory import rank_group_bytes

_NormPart = tuple[_native.Matrix, _native.Matrix, int, bool]


class RankGroup:
    """A rank's end of the memory in which its group meets.

    Args:
        memory: descriptor of a file, the same for all ranks, which has `rank_group_bytes(ranks)`
            zeros from `offset` on.

    Attributes:
        rank, ranks: which of how many.
    """

    def __init__(self, memory: int, rank: int, ranks: int, offset: int = 0) -> None:
        self.rank, self.ranks = rank, ranks
        pages = mmap.mmap(memory, rank_group_bytes(ranks), offset=offset)
        self._memory = np.frombuffer(pages, np.uint8)  # which keeps `pages` alive
        self._handle = _native.RankGroup(address(self._memory), rank, ranks)

    def begin(self, step: int) -> None:
        """Begin a step, whose number exceeds the last one's and is the same on all ranks.

        A rank may still be in the last step, unless that has failed.
        """
        self._handle.begin(step)

    def fail(self) -> None:
        """End the step on this rank: ranks that wait for it get a RuntimeError."""
        self._handle.fail()

    def lose(self) -> None:
        """Mark a rank as gone: ranks that wait for it get a RuntimeError from now on."""
        self._handle.lose()

    def waited(self) -> list[float]:
        """Return the seconds that each rank has waited for others since it began."""
        return [1e-9 * self._handle.waited(rank) for rank in range(self.ranks)]

    def all_reduce(self, kernels: Kernels, pool: Pool, x: HostArray, dtype: DType) -> HostArray:
        """`Ops.all_reduce`: summed in the order of the ranks, so that all get the same
        bits. Every rank calls it with the same shape.

        Raises:
            ValueError: x is not a contiguous float32 matrix.
            RuntimeError: another rank has failed, or is gone.
        """
        _check(x)
        y = np.empty(x.shape, dtype)
        _native.all_reduce(kernels, pool, self._handle, view(y), view(x))
        return y

    def vocab_embedding(
        self, pool: Pool, ids: HostArray, table: HostArray | PackedLinear, first: int, vocab: int
    ) -> HostArray:
        """`Ops.vocab_embedding`: each row from the rank that has it, to the bit. Every
        rank calls it with the same ids.

        Raises:
            ValueError: ids or table are of another dtype or layout.
            IndexError: an id is not below `vocab`.
            RuntimeError: another rank has failed, or is gone.
        """
        rows = indices("ids", ids)
        y = np.empty((ids.size, table.shape[1]), table.dtype)
        given, weight = None, None
        if isinstance(table, PackedLinear):
            weight = table.packed
        else:
            given = matrix("table", table)
        _native.embedding(pool, self._handle, view(y), rows, given, weight, first, vocab)
        return y

    def all_gather(self, pool: Pool, x: HostArray, first: int, width: int) -> HostArray:
        """`Ops.all_gather`; the ranks' columns do not overlap, and are all of `width`.

        Raises:
            ValueError: x is not a contiguous matrix, or lies beyond `width`.
            RuntimeError: another rank has failed, or is gone.
        """
        own = contiguous("x", x, 2)
        y = np.empty((x.shape[0], width), x.dtype)
        _native.all_gather(pool, self._handle, view(y), own, first)
        return y

    def norm_all_heads(
        self,
        kernels: Kernels,
        pool: Pool,
        parts: tuple[HostArray, HostArray],
        weights: tuple[HostArray, HostArray],
        eps: float,
        head_dim: int,
    ) -> None:
        """Compute `rms_norm` of q and of k in place, each over the heads of all ranks.

        Args:
            parts: this rank's columns of q and of k.
            weights: of all heads.

        Raises:
            ValueError: they do not fit each other.
            RuntimeError: another rank has failed, or is gone.
        """

        def part(name: str, x: HostArray, weight: HostArray) -> _NormPart:
            heads = len(weight) // head_dim
            first = self.rank * heads // self.ranks
            own = weight[first * head_dim :][: x.shape[1]]
            # With fewer heads than ranks, several ranks have the same one.
            counts = self.rank == 0 or (self.rank - 1) * heads // self.ranks < first
            return matrix(name, x), contiguous(name, own, 1), len(weight), counts

        (q, k), (q_weight, k_weight) = parts, weights
        _native.rank_norms(
            kernels, pool, self._handle, part("q", q, q_weight), part("k", k, k_weight), eps
        )


def _check(x: HostArray) -> None:
    if x.dtype != FLOAT32 or x.ndim != 2 or not x.flags.c_contiguous:
        raise ValueError(f"x is {describe(x)}; wanted a contiguous float32 [rows, cols]")
