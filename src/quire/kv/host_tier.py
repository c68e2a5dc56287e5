"""Bookkeeping of KV blocks in host memory and in files. No torch, no copies.

These are two tiers below the prefix cache, with the same hashes, and a place for the blocks of
preempted requests:

    prefix cache ──evicted──► offload slots ──evicted──► files        found again by hash
    running      ──preempted► swap slots                              found by name

    The copies happen later: `take_copies` gives them to the next step, whose executor copies before
    it computes. Steps run in order, so a slot is written before it is read. Within a step each slot
    is used once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad, BlockStore
from quire.core.config import TierConfig
from quire.core.messages import HostTierStats


@dataclass(slots=True)
class SwappedBlocks:
    """A preempted request's blocks: entry first + i of its table is in `slots[i]`, as `keys[i]`.

    Attributes:
        first: earlier entries had left the sliding window.
        num_tokens: tokens that the blocks hold; the last block may be partly filled.
        private: other requests must not find them, because the prefix cache was reset.
    """

    first: int
    slots: list[int]
    keys: list[bytes]
    num_tokens: int
    private: bool = False


class HostTier:
    """Tracks swap slots, offload slots, files, and the copies of the next step.

    Swap slots have the first numbers, offload slots the others. A loaded block also stays in its
    slot, so that evicting it again needs no copy.
    """

    def __init__(self, config: TierConfig) -> None:
        self.config = config
        self._swapped_out = self._swapped_in = self._stored = self._loaded = self._failed = 0
        first, end = config.num_swap_slots, config.num_slots
        self._free_swap = list(range(first))[::-1]
        self._swapped: dict[str, SwappedBlocks] = {}
        self._num_swaps = 0
        # Least recently used first.
        self._offloaded: OrderedDict[bytes, int] = OrderedDict()
        self._free_offload = list(range(first, end))[::-1]
        self._files: OrderedDict[bytes, None] = OrderedDict()
        self._used: set[bytes] = set()  # in this step; they must not be evicted
        self._copies = BlockCopies([], [], [], [])

    @property
    def num_kept(self) -> int:
        """Return the number of evicted blocks that `find` can find."""
        return len(self._offloaded) + len(self._files)

    def stats(self) -> HostTierStats:
        free = len(self._free_swap) + len(self._free_offload)
        return HostTierStats(
            num_requests_swapped=len(self._swapped),
            slots_used=self.config.num_slots - free,
            slots_total=self.config.num_slots,
            files_used=len(self._files),
            swap_preemptions=self._num_swaps,
            swapped_out=self._swapped_out,
            swapped_in=self._swapped_in,
            stored=self._stored,
            loaded=self._loaded,
            failed=self._failed,
        )

    def take_copies(self) -> BlockCopies | None:
        """Return the copies since the last call, for the next step; None if there are none."""
        self._used.clear()
        if self._copies.empty:
            return None
        copies, self._copies = self._copies, BlockCopies([], [], [], [])
        return copies

    # -- preempted requests --------------------------------------------------------------

    def has_room(self, num_blocks: int) -> bool:
        """Return whether `num_blocks` blocks of a request can be swapped out."""
        return num_blocks <= len(self._free_swap)

    def swap_out(self, request_id: str, first: int, blocks: list[int], num_tokens: int) -> None:
        """Copy a request's blocks to swap slots, until `drop_swapped`. There must be room.

        Args:
            first: position of `blocks` in its table.
            num_tokens: its tokens up to the end of `blocks`.
        """
        self._num_swaps += 1
        slots = [self._free_swap.pop() for _ in blocks]
        # Unique keys: a load detects a slot that was never written.
        keys = [b"swap %d.%d" % (self._num_swaps, index) for index in range(len(blocks))]
        self._swapped[request_id] = SwappedBlocks(first, slots, keys, num_tokens)
        self._copies.stores.extend(map(BlockStore, blocks, slots, keys))
        self._swapped_out += len(blocks)

    def swapped(self, request_id: str) -> SwappedBlocks | None:
        """Return a preempted request's swapped blocks, if it was swapped out."""
        return self._swapped.get(request_id)

    def swap_in(self, request_id: str, index: int, block: int) -> BlockLoad:
        """Copy entry `index` of a swapped request's table into `block`."""
        swapped = self._swapped[request_id]
        self._swapped_in += 1
        index -= swapped.first
        return self._load(swapped.slots[index], block, swapped.keys[index])

    def drop_swapped(self, request_id: str) -> None:
        """Free a request's swap slots, if it has any."""
        if swapped := self._swapped.pop(request_id, None):
            self._free_swap += reversed(swapped.slots)

    # -- evicted blocks ------------------------------------------------------------------

    def offload(self, block: int, key: bytes) -> None:
        """Copy a cached block to a slot before its new use, if there is room."""
        if key in self._offloaded:
            self._use(key)
            return
        slot = self._free_slot()
        if slot is None:
            return
        self._offloaded[key] = slot
        self._use(key)
        self._copies.stores.append(BlockStore(block, slot, key))
        self._stored += 1

    def find(self, key: bytes) -> bool:
        """Return whether `load` can restore the block with this hash."""
        return key in self._offloaded or key in self._files

    def in_memory(self, key: bytes) -> bool:
        """Return whether a known block is in a slot, not only in a file."""
        return key in self._offloaded

    def load(self, key: bytes, block: int) -> BlockLoad:
        """Copy the stored block with this hash, which must exist, into `block`."""
        self._use(key)
        self._loaded += 1
        return self._load(self._offloaded.get(key, ON_DISK), block, key)

    def hold(self, key: bytes) -> None:
        """Protect a stored block from eviction until the step is made."""
        self._use(key)

    def lose(self, load: BlockLoad) -> None:
        """Forget the source of a failed load."""
        self._failed += 1
        if load.slot == ON_DISK:
            if load.key in self._files:
                del self._files[load.key]
                self._copies.dropped.append(load.key)
        else:
            self._drop(load.key, load.slot)

    def undo(self, copies: BlockCopies) -> None:
        """Forget what a step was to store, after it failed or was dropped."""
        self._copies.dropped.extend(copies.dropped)  # again: the files may still exist
        for _, key in copies.spills:
            self._files.pop(key, None)
        for store in copies.stores:
            self._drop(store.key, store.slot)
        keys = {store.key for store in copies.stores}
        lost = [name for name, swapped in self._swapped.items() if swapped.keys[0] in keys]
        for name in lost:
            self.drop_swapped(name)

    def forget_all(self) -> None:
        """Forget all offloaded blocks. Swapped blocks stay, for their own requests only."""
        for swapped in self._swapped.values():
            swapped.private = True
        self._free_offload += self._offloaded.values()
        self._offloaded.clear()
        self._copies.dropped.extend(self._files)
        self._files.clear()

    # -- parts ---------------------------------------------------------------------------

    def _use(self, key: bytes) -> None:
        """Mark a stored block as the newest, and protect it in this step."""
        self._used.add(key)
        if key in self._offloaded:
            self._offloaded.move_to_end(key)
        if key in self._files:
            self._files.move_to_end(key)

    def _drop(self, key: bytes, slot: int) -> None:
        """Forget an offloaded block, if it is still in this slot."""
        if self._offloaded.get(key) == slot:
            del self._offloaded[key]
            self._free_offload.append(slot)

    def _load(self, slot: int, block: int, key: bytes) -> BlockLoad:
        load = BlockLoad(slot, block, key)
        self._copies.loads.append(load)
        return load

    def _free_slot(self) -> int | None:
        """Return a slot for another block; None if this step uses all of them."""
        if self._free_offload:
            return self._free_offload.pop()
        oldest = next(iter(self._offloaded), None)
        if oldest is None or oldest in self._used:
            return None
        slot = self._offloaded.pop(oldest)
        self._spill(slot, oldest)
        return slot

    def _spill(self, slot: int, key: bytes) -> None:
        """Write an evicted slot to a file, if files are enabled."""
        if self.config.num_files == 0:
            return
        if key not in self._files:
            if len(self._files) == self.config.num_files:
                oldest = next(iter(self._files))
                if oldest in self._used:
                    return
                del self._files[oldest]
                self._copies.dropped.append(oldest)
            self._files[key] = None
            self._copies.spills.append((slot, key))
        self._use(key)

    def check_integrity(self) -> None:
        """Assert that each slot is either free or in use, once."""
        swap = self._free_swap + [s for kept in self._swapped.values() for s in kept.slots]
        assert sorted(swap) == list(range(self.config.num_swap_slots)), "a swap slot leaked"
        offload = [*self._free_offload, *self._offloaded.values()]
        expected = list(range(self.config.num_swap_slots, self.config.num_slots))
        assert sorted(offload) == expected, "an offload slot leaked"
        assert len(self._files) <= self.config.num_files, "there are too many files"
