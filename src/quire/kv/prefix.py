"""Finds the longest cached prefix of a request."""

from __future__ import annotations

from typing import NamedTuple, cast

from quire.core.config import CacheConfig
from quire.core.request import Request
from quire.kv.block_pool import BlockPool
from quire.kv.hashing import BlockHasher
from quire.kv.host_tier import HostTier
from quire.kv.states import StateCache

NO_BLOCK = -1
"""Entry of a block table for a block before the sliding window."""


class Entered(NamedTuple):
    """What a step adds to the prefix cache; invalid if the step fails."""

    blocks: list[int]
    states: list[int]


class PrefixCache:
    """Blocks by hash, and the states after them if the model has recurrent layers.

    Attributes:
        entered: what the present step adds.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.block_size = config.block_size
        tiers = config.tiers
        self.tier = HostTier(tiers) if tiers.num_slots else None
        offload = self.tier.offload if self.tier else None
        self.pool = BlockPool(config.num_blocks, offload)
        self.hasher = BlockHasher(config.block_size, config.hash_algo, config.hash_seed)
        self.caching = config.enable_prefix_caching
        self.window = config.sliding_window
        self.states = StateCache(config.states, self.block_size) if config.states else None
        self.begin_step()

    def begin_step(self) -> None:
        """Start the next step."""
        if self.states is not None:
            self.states.begin_step()
        self.entered = Entered([], self.states.entered if self.states else [])

    def find_prefix(self, request: Request) -> list[int]:
        """Return the blocks of the longest cached prefix of `request`.

        At least one token is left to compute, because the first step needs its logits.
        """
        if not self.caching or needs_all(request):
            return []
        hashes = self.hasher.extend(request)[: (request.num_tokens - 1) // self.block_size]
        if self.states is None:
            return self.find_blocks(hashes)
        while blocks := self.find_blocks(hashes[: self.states.usable(hashes)]):
            hashes = hashes[: len(blocks)]
            if self.states.usable(hashes) == len(blocks):
                break
        return blocks

    def find_blocks(self, hashes: list[bytes]) -> list[int]:
        """Return the blocks of the longest cached prefix within `hashes`."""
        if self.window is None:
            return self.pool.find_run(hashes)
        return self.last_window([self.pool.find(block_hash) for block_hash in hashes])

    def arrives(self, request: Request, prefix: list[int]) -> bool:
        """Return whether this step computes a state that spares `request` tokens in the next."""
        states = self.states
        if states is None or not states.entered or not self.caching or needs_all(request):
            return False
        end = (request.num_tokens - 1) // self.block_size
        return states.arrives(request.block_hashes[len(prefix) : end])

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

    def forget(self, entered: Entered) -> None:
        """Remove what a failed step has added to the prefix cache."""
        for block in entered.blocks:
            self.pool.forget(block)
        if self.states is not None:
            self.states.forget(entered.states)


def needs_all(request: Request) -> bool:
    """Return whether the whole prompt must be computed, for its log-probabilities for example."""
    skips = request.options.skip_reading_prefix_cache
    return skips or request.sampling_params.prompt_logprobs is not None
