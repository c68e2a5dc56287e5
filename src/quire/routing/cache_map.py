"""Which replicas hold which KV blocks, from their own reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import and_
from typing import NamedTuple

from quire.core.messages import BlockChanges


class Depth(NamedTuple):
    """Replicas that hold the same number of a prompt's first blocks; `mask` has their bits."""

    mask: int
    num_blocks: int


class CacheMap:
    """The prefix caches of all replicas: block hash → bit mask of the replicas that hold it.

    A block counts as held from the moment a request that computes it is sent, so requests that
    share a new prefix meet at one replica. `report` replaces the expectation by the fact.
    """

    def __init__(self, num_replicas: int) -> None:
        self.everyone = (1 << num_replicas) - 1
        self._holders: dict[bytes, int] = {}
        self._held: list[set[bytes]] = [set() for _ in range(num_replicas)]
        self._expected: list[Counter[bytes]] = [Counter() for _ in range(num_replicas)]

    def num_held(self, replica: int) -> int:
        """Return the number of blocks that a replica has reported and still holds."""
        return len(self._held[replica])

    def depths(self, hashes: Sequence[bytes]) -> list[Depth]:
        """Group all replicas by how many of a prompt's first blocks they hold, most first."""
        masks = accumulate(map(self._holders.get, hashes, repeat(0)), and_)
        ends = dict(zip(masks, range(1, len(hashes) + 1), strict=False))  # the last index wins
        found: list[Depth] = []
        grouped = 0
        for mask, num_blocks in reversed(ends.items()):
            if mask:
                found.append(Depth(mask & ~grouped, num_blocks))
                grouped = mask
        if grouped != self.everyone:
            found.append(Depth(self.everyone & ~grouped, 0))
        return found

    def expect(self, replica: int, hashes: Sequence[bytes]) -> None:
        """Count blocks as held by a replica that will compute them; `unexpect` takes it back."""
        bit, holders = 1 << replica, self._holders
        self._expected[replica].update(hashes)
        for block_hash in hashes:
            holders[block_hash] = holders.get(block_hash, 0) | bit

    def unexpect(self, replica: int, hashes: Sequence[bytes]) -> None:
        """End an expectation: the blocks have been reported, or their request has ended."""
        expected, held = self._expected[replica], self._held[replica]
        for block_hash in hashes:
            left = expected[block_hash] - 1
            if left > 0:
                expected[block_hash] = left
                continue
            del expected[block_hash]
            if block_hash not in held:
                self._clear(replica, block_hash)

    def report(self, replica: int, changes: BlockChanges) -> None:
        """Apply what a replica reports about its prefix cache."""
        held, bit, holders = self._held[replica], 1 << replica, self._holders
        gone = [*held] if changes.emptied else changes.left
        held.difference_update(gone)
        for block_hash in gone:
            self._clear(replica, block_hash)
        held.update(changes.entered)
        for block_hash in changes.entered:
            holders[block_hash] = holders.get(block_hash, 0) | bit

    def forget(self, replica: int) -> None:
        """Empty a replica's map: its process was lost. Expectations are taken back one by one."""
        self.report(replica, BlockChanges([], [], emptied=True))

    def _clear(self, replica: int, block_hash: bytes) -> None:
        left = self._holders.get(block_hash, 0) & ~(1 << replica)
        if left:
            self._holders[block_hash] = left
        else:
            self._holders.pop(block_hash, None)
