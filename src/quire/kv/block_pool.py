"""A fixed number of KV blocks: their users, the free ones, and the prefix cache."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from struct import pack

import numpy as np

from quire.core.messages import BlockChanges

NO_PARENT = -1


def packed(blocks: Sequence[int]) -> bytes:
    """Return numbers of blocks as int32. `array` takes twice as long for a long prompt's."""
    return pack(f"{len(blocks)}i", *blocks)


class BlockPool:
    """Reference-counted blocks. The free ones are in two queues: blank and idle.

    An unused block stays in the prefix cache until it is allocated again, so caching costs no
    memory. Blank blocks hold no known prefix; they are allocated first, the last freed one first.
    Idle blocks follow, the least recently used first. A block that is used again stays in the idle
    queue; `allocate` skips it, and `release` moves it to the end.

    Other pools may lend blocks: these have numbers below `first`, are never free here, and leave
    with their last user (see `kv.loans`).

    Args:
        first: number of the first block.
        on_evict: called with a block and its hash when it leaves the prefix cache for a new use.
        report_changes: whether `take_changes` returns the changes of the prefix cache.
    """

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[int, bytes], None] | None = None,
        *,
        first: int = 0,
        report_changes: bool = False,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} blocks cannot hold anything")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.first, self.end = first, first + num_blocks
        self._blank = list(range(first, self.end))[::-1]
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._ref_count = array("i", bytes(4 * self.end))
        self._counts = np.frombuffer(self._ref_count, np.int32)  # the same numbers
        self._hash: list[bytes | None] = [None] * self.end
        self._cached: dict[bytes, int] = {}
        self._parent = array("i", [NO_PARENT]) * self.end
        self._on_evict = on_evict
        self._changes: dict[bytes, bool] | None = {} if report_changes else None
        self._emptied = False
        self.left: list[int] = []
        """Lent blocks that have lost their last user; `kv.loans` takes them."""

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def has_changes(self) -> bool:
        """Return whether `take_changes` has any to return."""
        return bool(self._changes) or self._emptied

    @property
    def num_cached(self) -> int:
        """Return the number of free blocks that hold a known prefix."""
        return self.num_free - len(self._blank)

    def ref_count(self, block: int) -> int:
        return self._ref_count[block]

    def num_idle(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` are unused."""
        counts = self._ref_count
        return [counts[block] for block in blocks].count(0)

    def find(self, block_hash: bytes) -> int | None:
        """Return the block, used or free, with this hash; None if there is none."""
        return self._cached.get(block_hash)

    def find_known(self, hashes: Sequence[bytes]) -> list[int] | None:
        """Return the blocks of two or more hashes, or None if one of them is unknown."""
        try:
            return [*itemgetter(*hashes)(self._cached)] if len(hashes) > 1 else None
        except KeyError:
            return None

    def find_all(self, hashes: Sequence[bytes]) -> list[int | None]:
        """Return what `find` returns for each of `hashes`."""
        return list(map(self._cached.get, hashes))

    def find_run(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks of `hashes`, up to the first unknown hash."""
        if not hashes or hashes[0] not in self._cached:
            return []
        if (known := self.find_known(hashes)) is not None:
            return known
        found = self.find_all(hashes)
        if None in found:
            del found[found.index(None) :]
        return found  # type: ignore[return-value]  # no None is left

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` free blocks; the idle ones among them leave the prefix cache.

        The caller must check `num_free`.
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
        """Add a user to each of `blocks`, which are all in the prefix cache, and differ."""
        index = np.frombuffer(packed(blocks), np.int32)
        counts = self._counts[index]
        self.num_free -= len(blocks) - int(np.count_nonzero(counts))
        self._counts[index] = counts + 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove a user from each of `blocks`; unused blocks become free."""
        counts, hashes, idle = self._ref_count, self._hash, self._idle
        for block in blocks:
            counts[block] -= 1
            assert counts[block] >= 0, f"block {block} was freed twice"
            if counts[block] == 0:
                if block < self.first:
                    self.forget(block)
                    self.left.append(block)
                    continue
                self.num_free += 1
                if hashes[block] is None:
                    self._blank.append(block)
                else:
                    idle[block] = None
                    idle.move_to_end(block)

    def remember(
        self, blocks: Sequence[int], hashes: Sequence[bytes], before: bytes | None = None
    ) -> None:
        """Add full, consecutive blocks to the prefix cache, except those with a known hash.

        Args:
            before: the hash of the block before the first one.
        """
        own, cached, parents = self._hash, self._cached, self._parent
        parent = NO_PARENT if before is None else cached.get(before, NO_PARENT)
        for block, block_hash in zip(blocks, hashes, strict=True):
            if own[block] is None and block_hash not in cached:
                own[block] = block_hash
                cached[block_hash] = block
                parents[block] = parent
                parent = block
                if self._changes is not None:
                    self._changes[block_hash] = True
            else:
                parent = cached.get(block_hash, NO_PARENT)

    def cached_blocks(self) -> tuple[list[int], array[int]]:
        """Return the blocks of the prefix cache in the order of entry, and each block's parent.

        The parent is the block before it at the time of entry; it may have a new use since.
        """
        return list(self._cached.values()), self._parent

    def adopt(self, blocks: Sequence[int], hashes: Sequence[bytes] | None) -> list[int]:
        """Add a user to each of another pool's blocks, and let them be found by their hashes.

        Returns:
            The blocks that have been adopted already.
        """
        counts, own, new, again = self._ref_count, self._hash, blocks, list[int]()
        index = np.frombuffer(packed(blocks), np.int32)
        if self._counts[index].any():
            is_new = [not counts[block] for block in blocks]
            again = [block for block in blocks if counts[block]]
            new, hashes = [*compress(new, is_new)], hashes and [*compress(hashes, is_new)]
        if hashes is not None:
            entered = [*map(self._cached.setdefault, hashes, new)]
            for block, block_hash, found in zip(new, hashes, entered, strict=True):
                if found == block:
                    own[block] = block_hash
        self._counts[index] += 1
        return again

    def reserve(self, blocks: Iterable[int]) -> None:
        """Take these blank blocks, once for each time that they are listed."""
        for block in blocks:
            self.num_free -= not self._ref_count[block]
            self._ref_count[block] += 1
        self._blank = [block for block in self._blank if not self._ref_count[block]]

    def forget(self, block: int) -> None:
        """Remove a block from the prefix cache, if it is there."""
        block_hash = self._hash[block]
        if block_hash is not None:
            self._hash[block] = None
            del self._cached[block_hash]
            if self._changes is not None:
                self._changes[block_hash] = False
            if block in self._idle:
                del self._idle[block]
                if not self._ref_count[block]:
                    self._blank.append(block)

    def forget_all(self) -> None:
        """Empty the prefix cache."""
        self._hash = [None] * self.end
        self._cached.clear()
        self._blank += self._unused()
        self._idle.clear()
        if self._changes is not None:
            self._changes.clear()
            self._emptied = True

    def take_changes(self) -> BlockChanges | None:
        """Return how the prefix cache has changed since the last call; None if it has not."""
        if not self.has_changes:
            return None
        assert self._changes is not None
        entered = [block_hash for block_hash, is_here in self._changes.items() if is_here]
        left = [block_hash for block_hash, is_here in self._changes.items() if not is_here]
        changes = BlockChanges(entered, left, self._emptied)
        self._changes.clear()
        self._emptied = False
        return changes

    def _unused(self) -> list[int]:
        """Return the unused idle blocks, the least recently used first."""
        return [block for block in self._idle if not self._ref_count[block]]

    def check_integrity(
        self, tables: Mapping[str, list[int]], loans: Mapping[int, int] | None = None
    ) -> None:
        """Assert that queues, counts and prefix cache agree with the users.

        Args:
            tables: blocks by request.
            loans: the number of loans of each block that was lent or borrowed.
        """
        users = array("i", bytes(4 * self.end))
        for block, count in (loans or {}).items():
            users[block] = count
        for name, table in tables.items():
            assert len(table) == len(set(table)), f"{name} holds a block twice"
            for block in table:
                users[block] += 1
        if users != self._ref_count:
            pairs = enumerate(zip(users, self._ref_count, strict=True))
            block, count, kept = next((b, n, m) for b, (n, m) in pairs if n != m)
            raise AssertionError(f"block {block} has {count} users, not {kept}")
        free = [*self._blank, *self._unused()]
        assert len(free) == len(set(free)) == self.num_free, "free count is wrong"
        assert not any(map(users.__getitem__, free)), "a block is free and in use"
        assert users[self.first :].count(0) == self.num_free, "a block leaked"
        lost = [b for b, h in enumerate(self._hash[: self.first]) if h and not users[b]]
        assert not lost, f"block {lost} of another pool is cached without a loan"
        hashes = self._hash
        assert not any(map(hashes.__getitem__, self._blank)), "a blank block is cached"
        assert all(map(hashes.__getitem__, self._idle)), "an idle one is not"
        held = dict(zip(hashes, range(len(hashes)), strict=True))
        held.pop(None, None)
        assert held == self._cached, "prefix cache and blocks disagree"
