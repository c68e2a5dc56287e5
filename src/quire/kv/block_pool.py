"""A fixed number of KV blocks: who uses them, which are free, and which hold a known prefix."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Reference-counted blocks with a free list in least-recently-used order.

    A block that nobody uses stays in the prefix cache until it is handed out again, so that
    caching costs no memory. The free list is doubly linked through two flat arrays, whose
    last entry is the sentinel; taking any block out of its middle costs O(1):

        sentinel -> oldest <-> ... <-> newest -> sentinel
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} blocks cannot hold anything")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._sentinel = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [num_blocks, *range(num_blocks)]
        self._ref_count = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def ref_count(self, block: int) -> int:
        return self._ref_count[block]

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds the prefix with this hash, used or free; None if none does."""
        return self._cached.get(block_hash)

    def allocate(self, count: int) -> list[int]:
        """Take the `count` least recently used free blocks; each leaves the prefix cache.

        The caller has checked `num_free`.
        """
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} free"
        blocks = []
        block = self._next[self._sentinel]
        for _ in range(count):
            blocks.append(block)
            self._ref_count[block] = 1
            self.forget(block)
            block = self._next[block]
        self._next[self._sentinel] = block
        self._prev[block] = self._sentinel
        self.num_free -= count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a user to each of `blocks`, taking the unused ones off the free list."""
        for block in blocks:
            if self._ref_count[block] == 0:
                before, after = self._prev[block], self._next[block]
                self._next[before], self._prev[after] = after, before
                self.num_free -= 1
            self._ref_count[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Take a user from each of `blocks`; those left unused become the newest free ones.

        Blocks that hold no known prefix go to the oldest end instead: nobody can reuse them.
        """
        for block in blocks:
            self._ref_count[block] -= 1
            assert self._ref_count[block] >= 0, f"block {block} was freed twice"
            if self._ref_count[block] == 0:
                after = self._sentinel if self._hash[block] else self._next[self._sentinel]
                before = self._prev[after]
                self._prev[block], self._next[block] = before, after
                self._next[before] = self._prev[after] = block
                self.num_free += 1

    def remember(self, block: int, block_hash: bytes) -> None:
        """Enter a full block into the prefix cache, unless an equal one is there already."""
        if self._hash[block] is None and block_hash not in self._cached:
            self._hash[block] = block_hash
            self._cached[block_hash] = block

    def forget(self, block: int) -> None:
        """Drop a block from the prefix cache, if it is there."""
        block_hash = self._hash[block]
        if block_hash is not None:
            self._hash[block] = None
            del self._cached[block_hash]

    def forget_all(self) -> None:
        """Empty the prefix cache."""
        self._hash = [None] * self.num_blocks
        self._cached.clear()

    def check_integrity(self) -> None:
        """Assert that the free list, the counts and the prefix cache agree."""
        free = []
        block, before = self._next[self._sentinel], self._sentinel
        while block != self._sentinel:
            assert self._prev[block] == before, f"free list is broken at block {block}"
            assert self._ref_count[block] == 0, f"block {block} is free and in use"
            free.append(block)
            before, block = block, self._next[block]
        assert self._prev[self._sentinel] == before, "free list does not close"
        assert len(free) == len(set(free)) == self.num_free, "free count is wrong"
        assert sum(count == 0 for count in self._ref_count) == self.num_free, "a block leaked"
        held = {h: b for b, h in enumerate(self._hash) if h is not None}
        assert held == self._cached, "prefix cache and blocks disagree"
