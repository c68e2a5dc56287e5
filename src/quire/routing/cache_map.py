"""Which replicas hold which KV blocks, from their own reports."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from quire.core.messages import BlockChanges


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

    def holders(self, block_hash: bytes) -> int:
        """Return the mask of the replicas that hold a block."""
        return self._holders.get(block_hash, 0)

    def num_blocks(self, hashes: Sequence[bytes], among: int, most: int | None = None) -> int:
        """Return how many of a prompt's first blocks are held by some replica of the mask `among`.

        This is a binary search. A block pool evicts the last block of a prefix first, so a replica
        that holds a block holds those before it.

        Args:
            most: an upper bound; None means all.
        """
        get = self._holders.get
        return bisect_left(hashes, True, 0, most, key=lambda each: not get(each, 0) & among)

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
