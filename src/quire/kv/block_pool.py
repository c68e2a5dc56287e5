"""A fixed number of KV blocks: who uses them, which are free, and which hold a known prefix."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

NO_PARENT = -1


class BlockPool:
    """Reference-counted blocks, of which the free ones wait in two lines.

    A block that nobody uses stays in the prefix cache until it is handed out again, so that
    caching costs no memory. Blank blocks, which hold no known prefix, are handed out first, the
    last one freed before the others; then idle ones, the least recently used first. A block that
    is used again stays in that line, and is passed over or moves to its end.

    Args:
        on_evict: told of each block, and its hash, that leaves the prefix cache to be used anew.
    """

    def __init__(
        self, num_blocks: int, on_evict: Callable[[int, bytes], None] | None = None
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} blocks cannot hold anything")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._blank = list(range(num_blocks))[::-1]
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._ref_count = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}
        self._parent = array("i", [NO_PARENT]) * num_blocks
        self._on_evict = on_evict

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Free blocks that hold a known prefix."""
        return self.num_free - len(self._blank)

    def ref_count(self, block: int) -> int:
        return self._ref_count[block]

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody uses."""
        counts = self._ref_count
        return [counts[block] for block in blocks].count(0)

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds the prefix with this hash, used or free; None if none does."""
        return self._cached.get(block_hash)

    def find_run(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of `hashes`, up to the first that no block has."""
        if not hashes or hashes[0] not in self._cached:
            return []
        found = list(map(self._cached.get, hashes))
        if None in found:
            del found[found.index(None) :]
        return found  # type: ignore[return-value]  # no None is left

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks; the idle ones among them leave the prefix cache.

        The caller has checked `num_free`.
        """
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} free"
        if not count:
            return []
        blocks = self._blank[-count:]
        blocks.reverse()
        del self._blank[-count:]
        while len(blocks) < count:
            block, _ = self._idle.popitem(last=False)
            if self._ref_count[block]:
                continue
            if self._on_evict is not None and (block_hash := self._hash[block]) is not None:
                self._on_evict(block, block_hash)
            self.forget(block)
            blocks.append(block)
        for block in blocks:
            self._ref_count[block] = 1
        self.num_free -= count
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add a user to each of `blocks`, all in the prefix cache."""
        counts = self._ref_count
        idle = 0
        for block in blocks:
            count = counts[block]
            idle += not count
            counts[block] = count + 1
        self.num_free -= idle

    def release(self, blocks: Iterable[int]) -> None:
        """Take a user from each of `blocks`; those left unused are free."""
        counts, hashes, idle = self._ref_count, self._hash, self._idle
        for block in blocks:
            counts[block] -= 1
            assert counts[block] >= 0, f"block {block} was freed twice"
            if counts[block] == 0:
                self.num_free += 1
                if hashes[block] is None:
                    self._blank.append(block)
                else:
                    idle[block] = None
                    idle.move_to_end(block)

    def remember(
        self, blocks: Sequence[int], hashes: Sequence[bytes], before: bytes | None = None
    ) -> None:
        """Enter full blocks into the prefix cache, but for those whose equal is there already.

        Args:
            before: hash of what comes before the first of these, which follow each other.
        """
        own, cached, parents = self._hash, self._cached, self._parent
        parent = NO_PARENT if before is None else cached.get(before, NO_PARENT)
        for block, block_hash in zip(blocks, hashes, strict=True):
            if own[block] is None and block_hash not in cached:
                own[block] = block_hash
                cached[block_hash] = block
                parents[block] = parent
                parent = block
            else:
                parent = cached.get(block_hash, NO_PARENT)

    def cached_blocks(self) -> tuple[list[int], array[int]]:
        """The blocks of the prefix cache in the order in which they were entered; and by block, the
        one that came before it when it was entered, which may have been entered anew since."""
        return list(self._cached.values()), self._parent

    def forget(self, block: int) -> None:
        """Drop a block from the prefix cache, if it is there."""
        block_hash = self._hash[block]
        if block_hash is not None:
            self._hash[block] = None
            del self._cached[block_hash]
            if block in self._idle:
                del self._idle[block]
                if not self._ref_count[block]:
                    self._blank.append(block)

    def forget_all(self) -> None:
        """Empty the prefix cache."""
        self._hash = [None] * self.num_blocks
        self._cached.clear()
        self._blank += self._unused()
        self._idle.clear()

    def _unused(self) -> list[int]:
        """The idle blocks, the least recently used first."""
        return [block for block in self._idle if not self._ref_count[block]]

    def check_integrity(self, tables: Mapping[str, list[int]]) -> None:
        """Assert that lines, counts, prefix cache and `tables` agree: blocks by request."""
        users: Counter[int] = Counter()
        for name, table in tables.items():
            assert len(table) == len(set(table)), f"{name} holds a block twice"
            users.update(table)
        for block, count in enumerate(self._ref_count):
            assert count == users[block], f"block {block} has {users[block]} users, not {count}"
        free = [*self._blank, *self._unused()]
        assert len(free) == len(set(free)) == self.num_free, "free count is wrong"
        assert all(self._ref_count[block] == 0 for block in free), "a block is free and in use"
        assert self._ref_count.count(0) == self.num_free, "a block leaked"
        assert all(self._hash[block] is None for block in self._blank), "a blank block is cached"
        assert all(self._hash[block] is not None for block in self._idle), "an idle one is not"
        held = {h: b for b, h in enumerate(self._hash) if h is not None}
        assert held == self._cached, "prefix cache and blocks disagree"
