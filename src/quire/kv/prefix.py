"""Finds the longest cached prefix of a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from quire.core.batch import BlockCopies, BlockLoad
from quire.core.config import CacheConfig
from quire.core.request import Request
from quire.kv.block_pool import BlockPool
from quire.kv.hashing import BlockHasher
from quire.kv.host_tier import HostTier
from quire.kv.loans import Loans, copies_loan
from quire.kv.lower_tiers import LowerTier
from quire.kv.runs import BlockRun
from quire.kv.states import StateCache

NO_BLOCK = -1
"""Entry of a block table for a block before the sliding window."""
TO_LOAD = -2
"""Entry of `Stored.blocks` for a block that only the host tier has."""


class Entered(NamedTuple):
    """What a step adds to the prefix cache; invalid if the step fails."""

    blocks: list[int]
    states: list[int]


class PrefixCache:
    """Blocks by hash, and the states after them if the model has recurrent layers.

    Attributes:
        entered: what the present step adds.
        tier: has blocks that left the cache; `states.tier` has states.
        tiers: both, if they are on.
        loans: blocks that replicas lend each other, if they do.
        moves: the copies of lent blocks that the present step does (`SchedulerOutput.moves`).
    """

    def __init__(self, config: CacheConfig, lower: Sequence[LowerTier] = ()) -> None:
        self.block_size = config.block_size
        tiers = config.tiers
        self.tier = HostTier(tiers, lower) if tiers.enabled else None
        offload = self.tier.offload if self.tier else None
        self.pool = BlockPool(
            config.num_blocks,
            offload,
            first=config.first_block or 0,
            report_changes=config.report_changes,
        )
        self.loans = Loans(self.pool) if config.first_block is not None else None
        self.hasher = BlockHasher(config.block_size, config.hash_algo, config.hash_seed)
        self.moves: list[tuple[int, int]] = []
        self.caching = config.enable_prefix_caching
        self.window = config.sliding_window
        self.states: StateCache | None = None
        if config.states:
            kept = None
            if tiers.of_states.enabled:
                kept = HostTier(tiers.of_states, [each.of_states for each in lower])
            self.states = StateCache(config.states, self.block_size, kept)
        of_states = self.states.tier if self.states else None
        self.tiers = [tier for tier in (self.tier, of_states) if tier is not None]
        self._runs: list[BlockRun] | None = [] if config.report_tokens else None
        self.begin_step()

    def take_runs(self) -> list[BlockRun]:
        """Return the runs of blocks that entered since the last call."""
        assert self._runs is not None
        runs, self._runs = self._runs, []
        return runs

    def begin_step(self) -> None:
        """Start the next step."""
        for tier in self.tiers:
            tier.begin_step()
        if self.states is not None:
            self.states.begin_step()
        self.moves = []
        self.entered = Entered([], self.states.entered if self.states else [])

    def find_prefix(self, request: Request) -> list[int]:
        """Return the blocks of the longest cached prefix of `request`.

        At least one token is left to compute, because the first step needs its logits.
        """
        if not self.caching or needs_all(request):
            return []
        hashes = self._hashes(request)
        blocks = self.find_blocks(hashes)
        while self.states and (count := self.states.usable(hashes[: len(blocks)])) < len(blocks):
            blocks = self.find_blocks(hashes[:count])
        return blocks

    def find_blocks(self, hashes: list[bytes]) -> list[int]:
        """Return the blocks of the longest cached prefix within `hashes`."""
        if self.window is None:
            return self.pool.find_run(hashes)
        return self.last_window([self.pool.find(block_hash) for block_hash in hashes])

    def arrives(self, request: Request, prefix: list[int]) -> bool:
        """Return whether this step computes a state that spares `request` tokens in the next."""
        states = self.states
        if states is None or not states.entered or needs_all(request):
            return False
        return states.arrives(self._hashes(request)[len(prefix) :])

    def _hashes(self, request: Request) -> list[bytes]:
        """Return the hashes of the blocks that may be cached: those before the last token."""
        return self.hasher.extend(request)[: (request.num_tokens - 1) // self.block_size]

    def _find(self, block_hash: bytes) -> int | None:
        """Return the block with this hash, `TO_LOAD` if only the host tier has it, or None."""
        block = self.pool.find(block_hash)
        if block is None and self.tier is not None and self.tier.find(block_hash):
            return TO_LOAD
        return block

    def _stored_blocks(self, hashes: list[bytes], prefix: list[int]) -> list[int]:
        """Return the blocks of the longest prefix within `hashes` that the cache or the tier has.

        Args:
            prefix: its cached beginning.
        """
        if self.window is not None:
            return self.last_window([self._find(block_hash) for block_hash in hashes])
        blocks = prefix.copy()
        for block_hash in hashes[len(prefix) :]:
            block = self._find(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_found(self, request: Request) -> int:
        """Return how many blocks of a request's prefix the cache or the tier has, without states.

        With a sliding window, those before it count, too.
        """
        hashes = self._hashes(request)
        return len(self._stored_blocks(hashes, self.find_blocks(hashes)))

    def take_copies(self) -> BlockCopies | None:
        """Return the copies since the last call, for the next step; None if there are none."""
        copies = [tier.take_copies() for tier in self.tiers]
        if not any(copies):
            return None
        blocks, *states = copies
        return replace(blocks or BlockCopies([], [], [], []), states=states[0] if states else None)

    @property
    def has_saves(self) -> bool:
        """Return whether the next step writes files."""
        return any(tier.has_saves for tier in self.tiers)

    def cancel_loads(self, loads: Iterable[BlockLoad]) -> None:
        """Stop loads that may not have ended, before their blocks get a new use."""
        for load in loads:
            self.tiers[load.of_state].cancel(load)

    def undo_copies(self, copies: BlockCopies) -> None:
        """Forget what a step was to store, after it failed or was dropped."""
        for tier, each in zip(self.tiers, (copies, copies.states), strict=False):
            if each is not None:
                tier.undo(each)

    def to_copy(self, request: Request, prefix: list[int]) -> list[int]:
        """Return the blocks of `prefix` that a request copies, because their owner needs room."""
        if self.loans is None or not copies_loan(request):
            return []
        return [block for block in prefix if 0 <= block < self.pool.first]

    def share(self, request: Request, prefix: list[int]) -> list[int]:
        """Make a request a user of a prefix; return it, with copies of its blocks `to_copy`.

        The present step copies them, and the prefix cache then finds the copies.
        """
        self.pool.share([block for block in prefix if block != NO_BLOCK])
        lent = self.to_copy(request, prefix)
        if not lent:
            return prefix
        moves = dict(zip(lent, self.pool.allocate(len(lent)), strict=True))
        known = zip(prefix, request.block_hashes, strict=False)
        hashes = [block_hash for block, block_hash in known if block in moves]
        for block in lent:
            self.pool.forget(block)
        self.pool.remember([*moves.values()], hashes)
        self.pool.release(lent)
        self.entered.blocks.extend(moves.values())
        self.moves += moves.items()
        return [moves.get(block, block) for block in prefix]

    def last_window(self, blocks: list[int | None]) -> list[int]:
        """Return the longest prefix whose blocks within the window are known (not None)."""
        missing = [index for index, block in enumerate(blocks) if block is None]
        end = len(blocks)
        while missing and missing[-1] >= self.first_needed(end * self.block_size):
            end = missing.pop()
        first = self.first_needed(end * self.block_size)
        return [NO_BLOCK] * first + cast("list[int]", blocks[first:end])

    def first_needed(self, position: int) -> int:
        """Return the first block that the tokens from `position` on attend to."""
        if self.window is None:
            return 0
        return max((position - self.window + 1) // self.block_size, 0)

    def discard(self, request: Request) -> None:
        """Remove all blocks of a request from the prefix cache: their values may be wrong."""
        for block_hash in request.block_hashes:
            block = self.pool.find(block_hash)
            if block is not None:
                self.pool.forget(block)
        if self.states is not None:
            self.states.discard(request.block_hashes)
        for tier in self.tiers:
            tier.discard(request.block_hashes)

    def forget(self, entered: Entered) -> None:
        """Remove what a failed step has added to the prefix cache."""
        for block in entered.blocks:
            self.pool.forget(block)
        for tier, each in zip(self.tiers, entered, strict=False):
            tier.forget_saves(each)
        if self.states is not None:
            self.states.forget(entered.states)


def needs_all(request: Request) -> bool:
    """Return whether the whole prompt must be computed, for its log-probabilities for example."""
    skips = request.options.skip_reading_prefix_cache
    return skips or request.sampling_params.prompt_logprobs is not None
