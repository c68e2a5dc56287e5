"""The KV cache as the scheduler sees it: blocks by request, and prefixes found and kept."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from quire.core.config import CacheConfig
from quire.core.request import Request
from quire.kv.block_pool import BlockPool
from quire.kv.hashing import BlockHasher

NO_BLOCK = -1
"""Stands in a block table for a block before the sliding window."""


class KVCacheManager:
    """Maps each request to its block table; the token at position p lives in entry p // block_size.

    Full blocks enter the prefix cache when the step that fills them is scheduled: every layer
    writes a step's keys and values before it reads any, so that a request in the very same
    step may already share them. `entered` lists such blocks until their step has succeeded;
    if it fails, they must be forgotten.

    Where every layer has a sliding window, blocks wholly before it are given back; their places
    in the table hold `NO_BLOCK`, and nobody reads what the runner has there.

    Args:
        max_chunk: most tokens of a request that one step computes.
    """

    def __init__(self, config: CacheConfig, max_chunk: int = sys.maxsize) -> None:
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_blocks)
        self.hasher = BlockHasher(config.block_size, config.hash_algo, config.hash_seed)
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.caching = config.enable_prefix_caching
        self.entered: list[int] = []
        self.window = config.sliding_window
        self._max_chunk = max_chunk
        self._tables: dict[str, list[int]] = {}
        self._num_entered: dict[str, int] = {}

    def table(self, request_id: str) -> list[int]:
        """The block table of a request that holds blocks."""
        return self._tables[request_id]

    def find_prefix(self, request: Request) -> list[int]:
        """The blocks that already hold the longest known prefix of `request`.

        At least one token is left to compute: without it there would be no logits. A request
        that wants the log-probabilities of its prompt needs all of it computed.
        """
        if not self.caching or request.sampling_params.prompt_logprobs is not None:
            return []
        hashes = self.hasher.extend(request)[: (request.num_tokens - 1) // self.block_size]
        return self.pool.find_run(hashes) if self.window is None else self._find_window(hashes)

    def _find_window(self, hashes: list[bytes]) -> list[int]:
        """The longest prefix of which those blocks are there that its window covers."""
        blocks = [self.pool.find(block_hash) for block_hash in hashes]
        end = begin = len(blocks)
        while end:
            first = self.first_needed(end * self.block_size)
            while begin > first and blocks[begin - 1] is not None:
                begin -= 1
            if begin <= first:
                break
            end = begin = begin - 1
        first = self.first_needed(end * self.block_size)
        return [NO_BLOCK] * first + [block for block in blocks[first:end] if block is not None]

    def first_needed(self, position: int) -> int:
        """The first block that the token at `position`, or one behind it, attends to."""
        if self.window is None:
            return 0
        return max(position - self.window + 1, 0) // self.block_size

    def most_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at most at a time."""
        return most_blocks(num_tokens, self.block_size, self.window, self._max_chunk)

    def can_admit(self, request: Request, prefix: list[int], reserved: int) -> bool:
        """Whether all of `request` fits, the blocks of `prefix` not charged.

        Args:
            prefix: what `find_prefix` gave; those of its blocks that nobody uses are on the
                free list, and cannot be handed out as well as shared.
            reserved: blocks already promised to running requests.
        """
        prefix = _held(prefix)
        needed = self.most_blocks(request.num_tokens) - len(prefix)
        return needed + reserved <= self.pool.num_free - self.pool.num_idle(prefix)

    def num_own(self, request: Request) -> int:
        """Blocks that would be free if `request` gave its own back."""
        blocks = _held(self._tables[request.request_id])
        return sum(self.pool.ref_count(block) == 1 for block in blocks)

    def admit(self, request: Request, prefix: list[int], num_tokens: int) -> list[int]:
        """Give `request` blocks for its first `num_tokens` tokens, and count the hit.

        Returns:
            Its block table, which begins with `prefix`. The caller has asked `can_admit`.
        """
        self.pool.share(_held(prefix))
        missing = -(-num_tokens // self.block_size) - len(prefix)
        table = prefix + self.pool.allocate(missing)
        self._tables[request.request_id] = table
        self._num_entered[request.request_id] = len(prefix)
        if self.caching:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += len(prefix) * self.block_size
        return table

    def extend(self, request: Request, blocks: list[int]) -> int:
        """Append blocks, taken from the pool, to a request's table.

        Returns:
            The position of the first one in the table.
        """
        table = self._tables[request.request_id]
        position = len(table)
        table += blocks
        return position

    def enter(self, request: Request, num_tokens: int) -> int:
        """Enter the full blocks among the first `num_tokens` tokens into the prefix cache.

        Returns:
            How many tokens of `request` are in blocks that have been entered.
        """
        full = num_tokens // self.block_size
        known = self._num_entered[request.request_id]
        if full > known and self.caching:
            hashes = self.hasher.extend(request)
            blocks = self._tables[request.request_id][known:full]
            if NO_BLOCK in blocks:  # given back before its tokens were known
                blocks = _held(blocks)
            self.pool.remember(blocks, hashes[full - len(blocks) : full])
            self.entered += blocks
            self._num_entered[request.request_id] = known = full
        return known * self.block_size

    def slide(self, request: Request, begin: int, end: int) -> None:
        """Give back entries [begin, end) of a request's table, which nobody attends to any more."""
        table = self._tables[request.request_id]
        self.pool.release(_held(table[begin:end]))
        table[begin:end] = [NO_BLOCK] * (end - begin)

    def free(self, request: Request) -> None:
        """Give a request's blocks back, its last first, so that prefixes outlive their tails."""
        table = self._tables.pop(request.request_id)
        del self._num_entered[request.request_id]
        self.pool.release(reversed(_held(table)))

    def discard(self, request: Request) -> None:
        """Make the prefix of a request unknown, because its values may be wrong."""
        for block_hash in request.block_hashes:
            block = self.pool.find(block_hash)
            if block is not None:
                self.pool.forget(block)

    def forget(self, blocks: Iterable[int]) -> None:
        """Drop blocks that may hold wrong values from the prefix cache, whoever has them now."""
        for block in blocks:
            self.pool.forget(block)

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes. Blocks in use stay in use; their tails may be cached anew."""
        self.pool.forget_all()

    def check_integrity(self) -> None:
        """Assert that tables and pool agree: no block leaked, or counted for the wrong users."""
        self.pool.check_integrity()
        users = [0] * self.pool.num_blocks
        for request_id, table in self._tables.items():
            table = _held(table)
            assert len(table) == len(set(table)), f"{request_id} holds a block twice"
            for block in table:
                users[block] += 1
        for block, count in enumerate(users):
            assert count == self.pool.ref_count(block), f"block {block} has {count} users"


def most_blocks(num_tokens: int, block_size: int, window: int | None, max_chunk: int) -> int:
    """Blocks that a sequence of so many tokens holds at most at a time.

    Args:
        window: tokens that it attends to; None is all.
        max_chunk: most of its tokens that one step computes.
    """
    blocks = -(-num_tokens // block_size)
    if window is None:
        return blocks
    # A step's tokens and the window before them may begin and end within a block.
    return min(blocks, (window + max_chunk - 2) // block_size + 2)


def _held(blocks: list[int]) -> list[int]:
    """`blocks` without the entries before the window, which come first."""
    if not blocks or blocks[0] != NO_BLOCK:
        return blocks
    return blocks[blocks.count(NO_BLOCK) :]
