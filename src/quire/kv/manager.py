"""The KV cache for the scheduler: block tables of requests, and the prefix cache."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence

from quire.core.batch import BlockLoad
from quire.core.config import CacheConfig
from quire.core.request import Request
from quire.kv.bounds import most_blocks
from quire.kv.host_tier import SwappedBlocks
from quire.kv.lower_tiers import LowerTier
from quire.kv.prefix import NO_BLOCK, TO_LOAD, PrefixCache, needs_all
from quire.kv.runs import run_of
from quire.kv.stored import Stored, held_blocks

NEVER = 2**40
"""More tokens, and more blocks, than any request has."""


class KVCacheManager(PrefixCache):
    """Maps each request to its block table; the token at position p is in entry p // block_size.

    Full blocks enter the prefix cache when the step that fills them is scheduled. Each layer writes
    a step's keys and values before it reads any, so a request in the same step may share them.
    `entered` lists these blocks until their step has succeeded; if it fails, they must be
    forgotten. With recurrent layers a prefix is cached if all its blocks are, and the state after
    them (`states`).

    If all layers have a sliding window, blocks before it are freed. Their entries in the table are
    `NO_BLOCK`, and the runner never reads its entries there.

    Args:
        max_chunk: the most tokens of a request in one step.
        lower: tiers below host memory.
    """

    def __init__(
        self, config: CacheConfig, max_chunk: int = sys.maxsize, lower: Sequence[LowerTier] = ()
    ) -> None:
        super().__init__(config, lower)
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._max_chunk = max_chunk
        self.tables: dict[str, list[int]] = {}
        self._num_entered: dict[str, int] = {}
        self._arriving: set[bytes] = set()

    def table(self, request_id: str) -> list[int]:
        """Return the block table of a request that holds blocks."""
        return self.tables[request_id]

    def most_blocks(self, num_tokens: int) -> int:
        return most_blocks(num_tokens, self.block_size, self.window, self._max_chunk)

    def can_admit(
        self, request: Request, prefix: list[int], reserved: int, num_leaving: int = 0
    ) -> bool:
        """Return whether all of `request` fits, without charging the blocks of `prefix`.

        Args:
            prefix: the result of `find_prefix`. Its unused blocks count as free, but sharing them
                takes them from the free ones.
            reserved: blocks already promised to running requests.
            num_leaving: running requests whose state slots count as free.
        """
        if self.states is not None and not self.states.has_room(num_leaving):
            return False
        prefix = held_blocks(prefix)
        needed = self.most_blocks(request.num_tokens) - len(prefix)
        needed += len(self.to_copy(request, prefix))
        return needed + reserved <= self.pool.num_free - self.pool.num_idle(prefix)

    def blocks_missing(self, request: Request) -> int:
        """Return how many more blocks an admitted request needs for its present tokens."""
        held = len(held_blocks(self.tables[request.request_id]))
        return max(0, self.most_blocks(request.num_tokens) - held)

    def num_own(self, request: Request) -> int:
        """Return how many blocks freeing `request` would free."""
        blocks = held_blocks(self.tables[request.request_id])
        return sum(self.pool.ref_count(block) == 1 for block in blocks)

    def admit(self, request: Request, prefix: list[int], num_tokens: int) -> list[int]:
        """Allocate blocks for a request's first `num_tokens` tokens, and count the cache hits.

        The caller must check `can_admit`.

        Returns:
            Its block table, which begins with `prefix`, or copies of lent blocks.
        """
        prefix = self.share(request, prefix)
        missing = -(-num_tokens // self.block_size) - len(prefix)
        table = prefix + self.pool.allocate(missing)
        self.tables[request.request_id] = table
        self._admit_states(request, len(prefix))
        self._num_entered[request.request_id] = len(prefix)
        self._note_found(request, prefix)
        return table

    def _note_found(self, request: Request, blocks: list[int]) -> None:
        """Count a request's first blocks that need no load as hits, and mark them as used."""
        if self.caching:
            known = zip(blocks, request.block_hashes, strict=False)
            found = [block_hash for block, block_hash in known if block != TO_LOAD]
            self.prefix_queries += request.num_tokens
            self.prefix_hits += len(found) * self.block_size
            for tier in self.tiers:
                tier.use(found)

    def _admit_states(
        self, request: Request, prefix: int, stored: bytes | None = None
    ) -> BlockLoad | None:
        """Give an admitted request its state slots; its first `prefix` blocks are computed.

        Args:
            stored: the key of its state in the tier.

        Returns:
            The load of that state.
        """
        if self.states is None:
            return None
        branch = len(self.find_blocks(self.hasher.extend(request))) if self.caching else None
        load = self.states.admit(request, prefix, branch, stored)
        self.states.extend(request.request_id, len(self.tables[request.request_id]))
        return load

    # -- blocks in the host tier -----------------------------------------------------------

    def find_stored(self, request: Request, prefix: list[int]) -> Stored | None:
        """Return `find_prefix`'s blocks and those in the host tier; None if these add nothing."""
        tier = self.tier
        if tier is None:
            return None
        if swapped := tier.swapped(request.request_id):
            return self._find_swapped(request, swapped)
        if needs_all(request) or not any(each.may_find for each in self.tiers):
            return None  # always without caching
        hashes = self._hashes(request)
        blocks, state = self._stored_blocks(hashes, prefix), None
        while self.states is not None:
            count, state = self.states.stored(hashes[: len(blocks)])
            if count == len(blocks):
                break
            blocks = self._stored_blocks(hashes[:count], prefix)
        keys = [key for key, block in zip(hashes, blocks, strict=False) if block == TO_LOAD]
        if not keys and state is None:
            return None
        return Stored(
            blocks,
            len(blocks) * self.block_size,
            keys,
            state,
            num_from_files=sum(not tier.in_memory(key) for key in keys),
            arriving=not self._arriving.isdisjoint([*keys, state]),
        )

    def _find_swapped(self, request: Request, swapped: SwappedBlocks) -> Stored:
        """Return the swapped blocks; full ones may still be in the KV cache."""
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
        """Do what `admit` does, with blocks to load.

        Returns:
            The block table, and the loads of the next step.
        """
        assert self.tier is not None
        for key in stored.keys:
            self.tier.hold(key)  # allocating may evict others
        shared = [block for block in stored.blocks if block >= 0]
        self.pool.share(shared)
        missing = -(-num_tokens // self.block_size) - len(stored.blocks)
        new = iter(self.pool.allocate(stored.num_loads + missing))
        table = [next(new) if block == TO_LOAD else block for block in stored.blocks]
        table += new
        to_load = [index for index, block in enumerate(stored.blocks) if block == TO_LOAD]
        self.tables[request.request_id] = table
        state = self._admit_states(request, len(stored.blocks), stored.state)
        # A loaded state enters with the last block.
        entered = min([*to_load, len(stored.blocks) - (state is not None)])
        self._num_entered[request.request_id] = NEVER if stored.private else entered
        self._note_found(request, stored.blocks)
        if stored.is_swapped:
            name = request.request_id
            return table, [self.tier.swap_in(name, index, table[index]) for index in to_load]
        targets = zip(stored.keys, to_load, strict=True)
        loads = [self.tier.load(key, table[index]) for key, index in targets]
        loads += [state] if state is not None else []
        self._arriving.update(load.key for load in loads)
        return table, loads

    def end_loads(self, loads: Iterable[BlockLoad], failed: Container[int]) -> bool:
        """End a request's loads; return whether all succeeded.

        Args:
            failed: blocks that could not be loaded, and `~slot` of states.
        """
        assert self.tier is not None
        self._arriving.difference_update(load.key for load in loads)
        lost = [load for load in loads if load.block in failed]
        for load in lost:
            self.tiers[load.of_state].lose(load)
        return not lost

    def can_swap_out(self, request: Request, num_tokens: int) -> bool:
        """Return whether the host tier has room for a request's first `num_tokens` tokens.

        With recurrent layers nothing is swapped: the prefix cache has a state at few positions, and
        the tiers below it keep blocks and states.
        """
        if self.tier is None or self.states is not None:
            return False
        return self.tier.has_room(
            len(held_blocks(self.tables[request.request_id][: -(-num_tokens // self.block_size)]))
        )

    def swap_out(self, request: Request, num_tokens: int) -> None:
        """Copy a request's first `num_tokens` tokens to the host tier, which must have room."""
        assert self.tier is not None
        table = self.tables[request.request_id][: -(-num_tokens // self.block_size)]
        # The window has moved since blocks were freed. With the blocks that it has left since, the
        # request would return with more than `most_blocks`, the limit of its admission.
        first = max(table.count(NO_BLOCK), self.first_needed(num_tokens))
        self.tier.swap_out(request.request_id, first, table[first:], num_tokens)

    def drop_swapped(self, request: Request) -> None:
        """Forget the swapped blocks of a request, if there are any."""
        if self.tier:
            self.tier.drop_swapped(request.request_id)

    # -- blocks of running requests --------------------------------------------------------

    def extend(self, request: Request, blocks: list[int]) -> int:
        """Append allocated blocks to a request's table.

        Returns:
            The position of the first one in the table.
        """
        table = self.tables[request.request_id]
        position = len(table)
        table += blocks
        if self.states is not None:
            self.states.extend(request.request_id, len(table))
        return position

    def enter(self, request: Request, num_tokens: int) -> int:
        """Add the full blocks of the first `num_tokens` tokens to the prefix cache.

        Returns:
            How many tokens of `request` are in blocks that were added.
        """
        if not self.caching:
            return NEVER
        full = num_tokens // self.block_size
        known = self._num_entered[request.request_id]
        if full > known:
            hashes = self.hasher.extend(request)
            blocks = self.tables[request.request_id][known:full]
            if NO_BLOCK in blocks:  # freed before its tokens were known
                blocks = held_blocks(blocks)
            first = full - len(blocks)
            before = hashes[first - 1] if first else None
            self.pool.remember(blocks, hashes[first:full], before)
            if self._runs is not None:
                self._runs.append(run_of(request, first, full, self.block_size))
            if self.tier is not None:
                self.tier.save(blocks, hashes[first:full])
            self.entered.blocks.extend(blocks)
            if self.states is not None:
                self.states.enter(request.request_id, hashes, known, full)
            self._num_entered[request.request_id] = known = full
        return known * self.block_size

    def slide(self, request: Request, begin: int, end: int) -> None:
        """Free entries [begin, end) of a request's table, which have left the window."""
        table = self.tables[request.request_id]
        self.pool.release(held_blocks(table[begin:end]))
        table[begin:end] = [NO_BLOCK] * (end - begin)

    def free(self, request: Request) -> None:
        """Free a request's blocks, the last first, so that prefixes stay cached the longest."""
        table = self.tables.pop(request.request_id)
        del self._num_entered[request.request_id]
        self.pool.release(reversed(held_blocks(table)))
        if self.states is not None:
            self.states.free(request.request_id)

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache; add no more blocks of the present requests to it."""
        self.pool.forget_all()
        self._num_entered = dict.fromkeys(self._num_entered, NEVER)
        if self.states is not None:
            self.states.reset()
        if self.tier:
            self.tier.forget_all()

    def check_integrity(self) -> None:
        """Assert that tables and pool agree: no block leaked, all counts are right."""
        assert self._num_entered.keys() == self.tables.keys(), "a request leaked"
        if self.tier:
            self.tier.check_integrity()
        if self.states is not None:
            self.states.check_integrity()
        tables = {name: held_blocks(table) for name, table in self.tables.items()}
        self.pool.check_integrity(tables, self.loans.counts() if self.loans else None)
