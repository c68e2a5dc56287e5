"""The KV cache as the scheduler sees it: blocks by request, and prefixes found and kept."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.config import CacheConfig
from quire.core.request import Request
from quire.kv.block_pool import BlockPool
from quire.kv.hashing import BlockHasher


class KVCacheManager:
    """Maps each request to its block table; the token at position p lives in entry p // block_size.

    Full blocks enter the prefix cache when the step that fills them is scheduled: every layer
    writes a step's keys and values before it reads any, so that a request in the very same
    step may already share them. `entered` lists such blocks until their step has succeeded;
    if it fails, they must be forgotten.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_blocks)
        self.hasher = BlockHasher(config.block_size, config.hash_algo, config.hash_seed)
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.caching = config.enable_prefix_caching
        self.entered: list[int] = []
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
        hashes = self.hasher.extend(request)
        return self.pool.find_run(hashes[: (request.num_tokens - 1) // self.block_size])

    def can_admit(self, request: Request, prefix: list[int], reserved: int) -> bool:
        """Whether all of `request` fits, the blocks of `prefix` not charged.

        Args:
            prefix: what `find_prefix` gave; those of its blocks that nobody uses are on the
                free list, and cannot be handed out as well as shared.
            reserved: blocks already promised to running requests.
        """
        needed = -(-request.num_tokens // self.block_size) - len(prefix)
        return needed + reserved <= self.pool.num_free - self.pool.num_idle(prefix)

    def admit(self, request: Request, prefix: list[int], num_tokens: int) -> list[int]:
        """Give `request` blocks for its first `num_tokens` tokens, and count the hit.

        Returns:
            Its block table, which begins with `prefix`. The caller has asked `can_admit`.
        """
        self.pool.share(prefix)
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
            self.pool.remember(blocks, hashes[known:full])
            self.entered += blocks
            self._num_entered[request.request_id] = known = full
        return known * self.block_size

    def free(self, request: Request) -> None:
        """Give a request's blocks back, its last first, so that prefixes outlive their tails."""
        table = self._tables.pop(request.request_id)
        del self._num_entered[request.request_id]
        self.pool.release(reversed(table))

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
            assert len(table) == len(set(table)), f"{request_id} holds a block twice"
            for block in table:
                users[block] += 1
        for block, count in enumerate(users):
            assert count == self.pool.ref_count(block), f"block {block} has {count} users"
