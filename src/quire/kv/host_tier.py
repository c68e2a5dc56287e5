"""Bookkeeping of KV blocks in host memory and below it. No torch, no copies.

These are tiers below the prefix cache, with the same hashes, and a place for the blocks of
preempted requests:

    prefix cache ──evicted──► offload slots                           found again by hash
                 ──entered──► files                                   the same, by any engine
    running      ──preempted► swap slots                              found by name

    The copies happen later: `take_copies` gives them to the next step, whose executor copies before
    it computes. Steps run in order, so a slot is written before it is read. Within a step each slot
    is used once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from quire.core.batch import BlockCopies, BlockLoad, BlockSave, BlockStore
from quire.core.config import TierConfig
from quire.core.messages import HostTierStats
from quire.kv.lower_tiers import LowerTier
from quire.system.records import dataclass


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
    """Tracks swap slots, offload slots, and the copies of the next step.

    Swap slots have the first numbers, offload slots the others. A loaded block also stays in its
    slot, so that evicting it again needs no copy. A block is saved to its file in the step behind
    the one that computes it, so a step that fails saves nothing wrong.

    Args:
        lower: the tiers below, in the order of their search.

    Attributes:
        unsaved: blocks that could not be written to files, as the worker counts them.
    """

    def __init__(self, config: TierConfig, lower: Sequence[LowerTier] = ()) -> None:
        self.config = config
        self._lower = lower
        self._swapped_out = self._swapped_in = self._stored = self._loaded = self._failed = 0
        self._saved = 0
        self.unsaved = 0
        first, end = config.num_swap_slots, config.num_slots
        self._free_swap = list(range(first))[::-1]
        self._swapped: dict[str, SwappedBlocks] = {}
        self._num_swaps = 0
        # Least recently used first.
        self._offloaded: OrderedDict[bytes, int] = OrderedDict()
        self._free_offload = list(range(first, end))[::-1]
        self._used: set[bytes] = set()  # in this step; they must not be evicted
        self._entered: dict[int, bytes] = {}  # hashes of blocks that the present step computes
        self._to_save: dict[int, bytes] = {}  # of blocks that the next one saves, at its begin
        self._copies = BlockCopies([], [], [], [])

    @property
    def may_find(self) -> bool:
        return bool(self._offloaded or self._lower)

    @property
    def has_saves(self) -> bool:
        """Return whether the next step writes files."""
        return bool(self._to_save or self._entered)

    def stats(self) -> HostTierStats:
        free = len(self._free_swap) + len(self._free_offload)
        return HostTierStats(
            num_requests_swapped=len(self._swapped),
            slots_used=self.config.num_slots - free,
            slots_total=self.config.num_slots,
            saved=self._saved,
            swap_preemptions=self._num_swaps,
            swapped_out=self._swapped_out,
            swapped_in=self._swapped_in,
            stored=self._stored,
            loaded=self._loaded,
            failed=self._failed,
            unsaved=self.unsaved,
        )

    def take_copies(self) -> BlockCopies | None:
        """Return the copies since the last call, for the next step; None if there are none."""
        self._used.clear()
        self._copies.saves.extend(BlockSave(*each) for each in self._to_save.items())
        self._saved += len(self._to_save)
        self._to_save.clear()
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
            self._free_swap += swapped.slots

    # -- blocks of the prefix cache --------------------------------------------------------

    def begin_step(self) -> None:
        """Start the next step."""
        self._to_save |= self._entered
        self._entered.clear()

    def save(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """Write blocks that the present step computes to files, in the step behind it."""
        if self.config.saves:
            found = zip(blocks, keys, strict=True)
            self._entered.update(each for each in found if not self._below(each[1]))

    def forget_saves(self, blocks: Iterable[int]) -> None:
        """Do not write these blocks to files: the step that was to compute them has failed."""
        for saves in (self._entered, self._to_save):
            for block in blocks:
                saves.pop(block, None)

    def discard(self, keys: Iterable[bytes]) -> None:
        """Remove blocks with possibly wrong values from files."""
        lost = set(keys)
        for saves in (self._entered, self._to_save):
            for block in [block for block, key in saves.items() if key in lost]:
                del saves[block]
        for key in lost:
            if key in self._offloaded:
                self._drop(key, self._offloaded[key])
            if self._below(key):
                self._copies.dropped.append(key)
                self._forget(key)

    def promise(self, keys: Iterable[bytes]) -> None:
        """Note blocks that another engine says it has."""
        for tier in self._lower:
            tier.promise(keys)

    def use(self, keys: Iterable[bytes]) -> None:
        """Mark blocks as used that a request found in the prefix cache."""
        for tier in self._lower:
            tier.use(keys)

    def offload(self, block: int, key: bytes) -> None:
        """Copy a cached block to a slot and a file before its new use, if there is room.

        It may have entered in this step: that of a preempted request does.
        """
        self._entered.pop(block, None)  # the next step would save what its new user computes
        if self.config.saves and not self._below(key):
            self._to_save[block] = key
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
        return key in self._offloaded or self._below(key) is not None

    def in_memory(self, key: bytes) -> bool:
        """Return whether a known block is in a slot, not only in a file."""
        return key in self._offloaded

    def load(self, key: bytes, block: int) -> BlockLoad:
        """Copy the stored block with this hash, which must exist, into `block`."""
        self._use(key)
        self._loaded += 1
        slot = self._offloaded.get(key)
        if slot is None:
            below = self._below(key)
            slot = self._lower[0].place if below is None else below.place
        return self._load(slot, block, key)

    def cancel(self, load: BlockLoad) -> None:
        """Stop a load that may not have ended."""
        if not load.from_memory:
            self._copies.cancelled.append(load.target)

    def hold(self, key: bytes) -> None:
        """Protect a stored block from eviction until the step is made."""
        self._use(key)

    def lose(self, load: BlockLoad) -> None:
        """Forget the source of a failed load."""
        self._failed += 1
        if load.from_memory:
            self._drop(load.key, load.slot)
        else:
            self._forget(load.key)

    def undo(self, copies: BlockCopies) -> None:
        """Forget what a step was to store, after it failed or was dropped."""
        self._copies.dropped.extend(copies.dropped)  # again: the files may still exist
        self._copies.cancelled.extend(copies.cancelled)
        for store in copies.stores:
            self._drop(store.key, store.slot)
        keys = {store.key for store in copies.stores}
        lost = [name for name, each in self._swapped.items() if not keys.isdisjoint(each.keys)]
        for name in lost:
            self.drop_swapped(name)

    def forget_all(self) -> None:
        """Forget all offloaded blocks. Swapped blocks stay, for their own requests only."""
        for swapped in self._swapped.values():
            swapped.private = True
        self._free_offload += self._offloaded.values()
        self._offloaded.clear()
        self._entered.clear()
        self._to_save.clear()
        for tier in self._lower:
            tier.forget_all()

    # -- parts ---------------------------------------------------------------------------

    def _use(self, key: bytes) -> None:
        """Mark a stored block as the newest, and protect it in this step."""
        self._used.add(key)
        if key in self._offloaded:
            self._offloaded.move_to_end(key)

    def _below(self, key: bytes) -> LowerTier | None:
        """Return the first tier below that has a block."""
        return next((tier for tier in self._lower if tier.find(key)), None)

    def _forget(self, key: bytes) -> None:
        for tier in self._lower:
            tier.lose(key)

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
        return self._offloaded.pop(oldest)

    def check_integrity(self) -> None:
        """Assert that each slot is either free or in use, once."""
        swap = self._free_swap + [s for kept in self._swapped.values() for s in kept.slots]
        assert sorted(swap) == list(range(self.config.num_swap_slots)), "a swap slot leaked"
        offload = [*self._free_offload, *self._offloaded.values()]
        expected = list(range(self.config.num_swap_slots, self.config.num_slots))
        assert sorted(offload) == expected, "an offload slot leaked"
