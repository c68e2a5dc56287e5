"""The KV cache as the scheduler sees it: blocks by request, and prefixes found and kept."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from quire.core.batch import BlockLoad
from quire.core.config import CacheConfig
from quire.core.request import Request
from quire.kv.block_pool import BlockPool
from quire.kv.hashing import BlockHasher
from quire.kv.host_tier import HostTier, SwappedBlocks

NEVER = 2**40
"""More blocks than any request fills."""
NO_BLOCK = -1
"""Stands in a block table for a block before the sliding window."""
TO_LOAD = -2
"""Stands in `Stored.blocks` for a block that the host tier has, and the KV cache has not."""


@dataclass(slots=True)
class Stored:
    """The first blocks of a request, with those that the host tier has.

    Attributes:
        blocks: by position: a block of the KV cache, `TO_LOAD` or `NO_BLOCK`.
        num_tokens: tokens that they hold; only what was swapped out ends within a block.
        keys: hashes of the blocks to load; empty where they were swapped out.
        num_from_files: how many of these are in files alone.
        arriving: another request loads one of them just now.
        private: they must not enter the prefix cache.
    """

    blocks: list[int]
    num_tokens: int
    keys: list[bytes] = field(default_factory=list)
    num_from_files: int = 0
    arriving: bool = False
    private: bool = False

    @property
    def num_loads(self) -> int:
        return self.blocks.count(TO_LOAD)


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
        tiers = config.tiers
        self.tier = HostTier(tiers) if tiers.num_slots else None
        offload = self.tier.offload if self.tier else None
        self.pool = BlockPool(config.num_blocks, offload)
        self.hasher = BlockHasher(config.block_size, config.hash_algo, config.hash_seed)
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.caching = config.enable_prefix_caching
        self.entered: list[int] = []
        self.window = config.sliding_window
        self._max_chunk = max_chunk
        self.tables: dict[str, list[int]] = {}
        self._num_entered: dict[str, int] = {}
        self._arriving: set[bytes] = set()

    def table(self, request_id: str) -> list[int]:
        """The block table of a request that holds blocks."""
        return self.tables[request_id]

    def find_prefix(self, request: Request) -> list[int]:
        """The blocks that already hold the longest known prefix of `request`.

        At least one token is left to compute: without it there would be no logits.
        """
        if not self.caching or _needs_all(request):
            return []
        hashes = self.hasher.extend(request)[: (request.num_tokens - 1) // self.block_size]
        if self.window is None:
            return self.pool.find_run(hashes)
        return self._last_window([self.pool.find(block_hash) for block_hash in hashes])

    def _last_window(self, blocks: list[int | None]) -> list[int]:
        """The longest prefix of which those blocks are there, not None, that its window covers."""
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

    def blocks_missing(self, request: Request) -> int:
        """Blocks that a request which holds some still needs for the tokens it has now."""
        held = len(_held(self.tables[request.request_id]))
        return max(0, self.most_blocks(request.num_tokens) - held)

    def num_own(self, request: Request) -> int:
        """Blocks that would be free if `request` gave its own back."""
        blocks = _held(self.tables[request.request_id])
        return sum(self.pool.ref_count(block) == 1 for block in blocks)

    def admit(self, request: Request, prefix: list[int], num_tokens: int) -> list[int]:
        """Give `request` blocks for its first `num_tokens` tokens, and count the hit.

        Returns:
            Its block table, which begins with `prefix`. The caller has asked `can_admit`.
        """
        self.pool.share(_held(prefix))
        missing = -(-num_tokens // self.block_size) - len(prefix)
        table = prefix + self.pool.allocate(missing)
        self.tables[request.request_id] = table
        self._num_entered[request.request_id] = len(prefix)
        if self.caching:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += len(prefix) * self.block_size
        return table

    # -- blocks in the host tier -----------------------------------------------------------

    def find_stored(self, request: Request, prefix: list[int]) -> Stored | None:
        """What the host tier adds to `prefix`, which `find_prefix` gave; None for nothing."""
        if self.tier is None:
            return None
        if swapped := self.tier.swapped(request.request_id):
            return self._find_swapped(request, swapped)
        if self.tier.num_kept == 0:  # nothing is, without caching
            return None
        if _needs_all(request):
            return None
        hashes = self.hasher.extend(request)[: (request.num_tokens - 1) // self.block_size]
        if self.window is not None:
            blocks = self._last_window([self._find(block_hash) for block_hash in hashes])
        else:
            blocks = prefix.copy()
            for block_hash in hashes[len(prefix) :]:
                block = self._find(block_hash)
                if block is None:
                    break
                blocks.append(block)
        keys = [key for key, block in zip(hashes, blocks, strict=False) if block == TO_LOAD]
        if not keys:
            return None
        return Stored(
            blocks,
            len(blocks) * self.block_size,
            keys,
            num_from_files=sum(not self.tier.in_memory(key) for key in keys),
            arriving=not self._arriving.isdisjoint(keys),
        )

    def _find(self, block_hash: bytes) -> int | None:
        """The block of the KV cache with this hash, `TO_LOAD` if the host tier has it, or None."""
        block = self.pool.find(block_hash)
        if block is None and self.tier is not None and self.tier.find(block_hash):
            return TO_LOAD
        return block

    def _find_swapped(self, request: Request, swapped: SwappedBlocks) -> Stored:
        """What was swapped out; its full blocks may still be in the KV cache."""
        first, count = swapped.first, len(swapped.slots)
        blocks = [NO_BLOCK] * first + [TO_LOAD] * count
        if self.caching:
            full = swapped.num_tokens // self.block_size
            for index, block_hash in enumerate(self.hasher.extend(request)[first:full], first):
                block = self.pool.find(block_hash)
                blocks[index] = TO_LOAD if block is None else block
        return Stored(blocks, swapped.num_tokens, private=swapped.private)

    def admit_stored(
        self, request: Request, stored: Stored, num_tokens: int
    ) -> tuple[list[int], list[BlockLoad]]:
        """As `admit`, with blocks for what has to be loaded.

        Returns:
            Its block table, and the loads, which the next step brings.
        """
        assert self.tier is not None
        for key in stored.keys:
            self.tier.hold(key)  # or allocating might evict it
        shared = [block for block in stored.blocks if block >= 0]
        self.pool.share(shared)
        missing = -(-num_tokens // self.block_size) - len(stored.blocks)
        new = iter(self.pool.allocate(stored.num_loads + missing))
        table = [next(new) if block == TO_LOAD else block for block in stored.blocks]
        table += new
        to_load = [index for index, block in enumerate(stored.blocks) if block == TO_LOAD]
        self.tables[request.request_id] = table
        entered = to_load[0] if to_load else len(stored.blocks)
        self._num_entered[request.request_id] = NEVER if stored.private else entered
        if self.caching:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += len(shared) * self.block_size
        if not stored.keys:
            name = request.request_id
            return table, [self.tier.swap_in(name, index, table[index]) for index in to_load]
        self._arriving.update(stored.keys)
        return table, [
            self.tier.load(key, table[index])
            for key, index in zip(stored.keys, to_load, strict=True)
        ]

    def end_loads(self, loads: Iterable[BlockLoad], failed: Container[int]) -> bool:
        """Note how a request's loads went; whether all succeeded.

        Args:
            failed: blocks that could not be loaded.
        """
        assert self.tier is not None
        self._arriving.difference_update(load.key for load in loads)
        lost = [load for load in loads if load.block in failed]
        for load in lost:
            self.tier.lose(load)
        return not lost

    def can_swap_out(self, request: Request, num_tokens: int) -> bool:
        """Whether the host tier has room for a request's first `num_tokens` tokens."""
        return self.tier is not None and self.tier.has_room(
            len(_held(self.tables[request.request_id][: -(-num_tokens // self.block_size)]))
        )

    def swap_out(self, request: Request, num_tokens: int) -> None:
        """Keep a request's first `num_tokens` tokens in the host tier, which has room for them."""
        assert self.tier is not None
        table = self.tables[request.request_id][: -(-num_tokens // self.block_size)]
        # The window has moved on since blocks were given back: with those it has left, the request
        # would come back holding more than `most_blocks`, by which it is let in.
        first = max(table.count(NO_BLOCK), self.first_needed(num_tokens))
        self.tier.swap_out(request.request_id, first, table[first:], num_tokens)

    def drop_swapped(self, request: Request) -> None:
        """Forget what was swapped out of a request, if anything was."""
        if self.tier:
            self.tier.drop_swapped(request.request_id)

    # -- blocks of running requests --------------------------------------------------------

    def extend(self, request: Request, blocks: list[int]) -> int:
        """Append blocks, taken from the pool, to a request's table.

        Returns:
            The position of the first one in the table.
        """
        table = self.tables[request.request_id]
        position = len(table)
        table += blocks
        return position

    def enter(self, request: Request, num_tokens: int) -> int:
        """Enter the full blocks among the first `num_tokens` tokens into the prefix cache.

        Returns:
            How many tokens of `request` are in blocks that need not be entered any more.
        """
        if not self.caching:
            return NEVER * self.block_size
        full = num_tokens // self.block_size
        known = self._num_entered[request.request_id]
        if full > known:
            hashes = self.hasher.extend(request)
            blocks = self.tables[request.request_id][known:full]
            if NO_BLOCK in blocks:  # given back before its tokens were known
                blocks = _held(blocks)
            first = full - len(blocks)
            before = hashes[first - 1] if first else None
            self.pool.remember(blocks, hashes[first:full], before)
            self.entered += blocks
            self._num_entered[request.request_id] = known = full
        return known * self.block_size

    def slide(self, request: Request, begin: int, end: int) -> None:
        """Give back entries [begin, end) of a request's table, which nobody attends to any more."""
        table = self.tables[request.request_id]
        self.pool.release(_held(table[begin:end]))
        table[begin:end] = [NO_BLOCK] * (end - begin)

    def free(self, request: Request) -> None:
        """Give a request's blocks back, its last first, so that prefixes outlive their tails."""
        table = self.tables.pop(request.request_id)
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
        """Forget all prefixes, and enter no more blocks of the requests that hold some now:
        nothing that was computed until now is found again."""
        self.pool.forget_all()
        self._num_entered = dict.fromkeys(self._num_entered, NEVER)
        if self.tier:
            self.tier.forget_all()

    def check_integrity(self) -> None:
        """Assert that tables and pool agree: no block leaked, or counted for the wrong users."""
        if self.tier:
            self.tier.check_integrity()
        self.pool.check_integrity({name: _held(table) for name, table in self.tables.items()})


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


def _needs_all(request: Request) -> bool:
    """Whether the prompt must be computed whole: its log-probabilities are wanted, for example."""
    skips = request.options.skip_reading_prefix_cache
    return skips or request.sampling_params.prompt_logprobs is not None


def _held(blocks: list[int]) -> list[int]:
    """`blocks` without the entries before the window, which come first."""
    if not blocks or blocks[0] != NO_BLOCK:
        return blocks
    return blocks[blocks.count(NO_BLOCK) :]
