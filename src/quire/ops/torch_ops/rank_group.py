"""What ranks tell each other where torch computes: NCCL between cards, Gloo between processes.

Neither promises an order of sums, so they only move bytes here. Each rank adds up all parts itself,
in the order of the ranks.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from quire.core.errors import EngineDeadError
from quire.ops.interface import Ops
from quire.ops.metadata import Heads
from quire.ops.weights import LinearWeight

_PATIENCE = timedelta(minutes=10)
"""Longest wait for another rank; the watchdog of `--step-timeout` is mostly earlier."""
_POLL_SECONDS = 0.01
_ARRIVALS, _WAITS, _PROCESS, _FILE = 0, 128, 192, 193
"""Numbers in the ranks' page: two sets of 64 times of arrival, the nanoseconds that each rank has
waited, and the process and descriptor of the file in which they meet."""
_dist: Any = torch.distributed  # whose stubs lack some of what it documents

AnyOps = TypeVar("AnyOps", bound=Ops[Any])


class TorchRankGroup:
    """A rank's connections to the others of its group. It does what `ops.rank_group` does.

    Args:
        memory: descriptor of a file, the same for all ranks, with a page of zeros at `offset`.
        cuda: the ranks compute on cards of their own; else in processes of this machine.

    Attributes:
        rank, ranks: which of how many.
    """

    def __init__(
        self, memory: int, rank: int, ranks: int, offset: int = 0, *, cuda: bool = False
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self._cuda = cuda
        pages = mmap.mmap(memory, mmap.ALLOCATIONGRANULARITY, offset=offset)
        self._page = np.frombuffer(pages, np.int64)
        self._met = 0
        self._store = self._meet()
        self._links: Any = self._connect(0)

    def begin(self, step: int) -> None:
        """Begin a step, whose number is the same on all ranks; connect anew if the last failed."""
        if self._links is None:
            self._links, self._met = self._connect(step), 0

    def fail(self) -> None:
        """End the step on this rank: ranks that wait for it get a RuntimeError."""
        links, self._links = self._links, None
        if links is not None:
            links.abort()

    def lose(self) -> None:
        """End all waiting, after a rank was lost."""
        self.fail()

    def waited(self) -> list[float]:
        """Return the seconds that each rank has waited for others since it began.

        Nothing on cards: they wait for each other, not their processes.
        """
        own = 0 if self._cuda else self.ranks
        return [1e-9 * int(wait) for wait in self._page[_WAITS : _WAITS + own]]

    def bound(self, ops: AnyOps) -> AnyOps:
        """Return the ops of one process as those of this rank.

        They record no graphs: what another rank does is not in them.
        """
        embedding, rope_kv_write = ops.embedding, ops.rope_kv_write

        def vocab_embedding(
            ids: Tensor, table: Tensor | LinearWeight, first: int, vocab: int
        ) -> Tensor:
            return self._vocab_embedding(embedding, ids, table, first)

        def normed_rope_kv_write(
            qkv: Tensor, positions: Tensor, cos_sin: Tensor | None, cache: Any,
            slot_mapping: Tensor, heads: Heads[Tensor],
        ) -> Tensor:  # fmt: skip
            q_heads, kv_heads, head_dim, q_norm, k_norm, _, eps = heads
            if q_norm is not None and k_norm is not None and len(q_norm) > head_dim:
                width = q_heads * head_dim
                self._norm(qkv[:, :width], q_norm, eps, head_dim)
                self._norm(qkv[:, width : width + kv_heads * head_dim], k_norm, eps, head_dim)
                heads = heads._replace(q_norm=None, k_norm=None)
            found: Tensor = rope_kv_write(qkv, positions, cos_sin, cache, slot_mapping, heads)
            return found

        changed = ops.using(
            all_reduce=self.all_reduce, all_gather=self.all_gather, whole=ops.whole,
            vocab_embedding=vocab_embedding, rope_kv_write=normed_rope_kv_write,
        )  # fmt: skip
        changed.ranks, changed.capture = self.ranks, None
        return changed

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`Ops.all_reduce`: all ranks add in the same order, so all get the same bits."""
        return self._sum(x).to(dtype)

    def all_gather(self, x: Tensor, first: int, width: int) -> Tensor:
        """`Ops.all_gather`; the ranks' columns do not overlap, and are all of `width`."""
        y = x.new_zeros(x.shape[0], width)
        y[:, first : first + x.shape[1]] = x
        return self._merge(y)

    def _vocab_embedding(
        self,
        embedding: Callable[[Tensor, Any], Tensor],
        ids: Tensor,
        table: Tensor | LinearWeight,
        first: int,
    ) -> Tensor:
        own = ids - first
        inside = (own >= 0) & (own < table.shape[0])
        rows = embedding(own.clamp(0, table.shape[0] - 1), table)
        return self._merge(torch.where(inside[:, None], rows, torch.zeros_like(rows)))

    def _norm(self, x: Tensor, weight: Tensor, eps: float, head_dim: int) -> None:
        """Compute `rms_norm` over the heads of all ranks in place; x is this rank's part.

        With fewer heads than ranks, several ranks have the same one, and the first of them counts.
        """
        heads = len(weight) // head_dim
        first = self.rank * heads // self.ranks
        counts = self.rank == 0 or (self.rank - 1) * heads // self.ranks < first
        wide = x.float()
        squares = wide.pow(2).sum(-1, keepdim=True) * counts
        mean = self._sum(squares) / len(weight)
        own = weight[first * head_dim :][: x.shape[1]]
        x.copy_(own * (wide * torch.rsqrt(mean + eps)).to(weight.dtype))

    def _sum(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        self._together(lambda links: links.allgather([parts], [x.contiguous()]))
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total

    def _merge(self, x: Tensor) -> Tensor:
        """Return the elements of the rank that has them, to the bit; the others have zeros."""
        self._together(lambda links: links.allreduce([x.view(torch.uint8)]))
        return x

    def _together(self, work: Callable[[Any], Any]) -> None:
        """Do what all ranks do, and note how long this one has waited for the last to come.

        Two sets of times alternate: a rank has read one before it comes to the use of the next.
        """
        if self._links is None:
            raise RuntimeError("the group of ranks has lost a rank")
        self._met += 1
        first = _ARRIVALS + 64 * (self._met % 2)
        arrivals = self._page[first : first + self.ranks]
        arrivals[self.rank] = time.monotonic_ns()
        work(self._links).wait()
        if not self._cuda:
            self._page[_WAITS + self.rank] += max(0, arrivals.max() - arrivals[self.rank])

    def _meet(self) -> Any:
        """Return the store where ranks find each other: a file in memory that only processes of
        this user can open, and not a port that every process of the machine can."""
        page = self._page
        if self.rank == 0:
            page[_FILE] = os.memfd_create("quire-ranks")
            page[_PROCESS] = os.getpid()
        end = time.monotonic() + _PATIENCE.total_seconds()
        while not page[_PROCESS]:
            if time.monotonic() > end:
                raise EngineDeadError(f"rank {self.rank} waits for rank 0, which has not come.")
            time.sleep(_POLL_SECONDS)
        # Opened here: the store opens its file again and again, also when rank 0 is gone.
        self._file = os.open(f"/proc/{page[_PROCESS]}/fd/{page[_FILE]}", os.O_RDWR)
        store = _dist.FileStore(f"/proc/self/fd/{self._file}", self.ranks)
        store.set_timeout(_PATIENCE)
        return store

    def _connect(self, attempt: int) -> Any:
        """Return torch's process group; `attempt` is the same on all ranks, and new."""
        store = _dist.PrefixStore(str(attempt), self._store)
        kind = _dist.ProcessGroupNCCL if self._cuda else _dist.ProcessGroupGloo
        options = kind.Options() if self._cuda else kind._Options()
        options._timeout = _PATIENCE
        if not self._cuda:
            options._devices = [kind.create_device(interface="lo")]
        return kind(store, self.rank, self.ranks, options)
