"""States of recurrent layers: slots of running requests, and snapshots in the prefix cache.

A recurrent layer keeps one state per sequence, of a fixed size. A slot holds that of all layers.

    request    working slots    [ 4, 9 ]                  the runner writes them in turn
               state table      [ -1, -1, 17, -1, 3 ]     slot of the state after each block
    snapshot   slot 17          has the hash of the third block, and is found by it

A request begins with the zero state, or with a snapshot after its cached prefix. Reading one slot
and writing another is how requests share states: nothing is ever copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field

from quire.core.batch import NO_STATE, BlockLoad, FirstState
from quire.core.config import StateConfig
from quire.core.request import Request
from quire.kv.block_pool import BlockPool
from quire.kv.bounds import LEAST_SPACING, SNAPSHOTS_PER_PROMPT
from quire.kv.host_tier import HostTier
from quire.system.records import dataclass


def snapshot_distance(num_tokens: int, most: int) -> int:
    """Return the tokens between the snapshots of a prompt: an eighth of it, but `most` at most.

    It is `LEAST_SPACING` or a power of two times that. So prompts of any lengths have snapshots at
    the same positions, and share them.
    """
    distance = LEAST_SPACING
    while distance * SNAPSHOTS_PER_PROMPT < num_tokens:
        distance *= 2
    return min(distance, most)


@dataclass(slots=True)
class _Held:
    """A request's slots. Positions count blocks: the state after `n` blocks.

    Attributes:
        last: the last position before its last token, at its admission.
        branch: a position at which earlier requests went on with other tokens, or 0; None if its
            snapshots may not enter the prefix cache, so that none are taken.
        table: the state table, parallel to the block table.
        spacing: blocks between the snapshots of its prompt.
        snapshots: position → slot, ascending: the state that it begins with, and snapshots that it
            may still begin a step with.
    """

    first: FirstState
    last: int
    branch: int | None
    spacing: int
    table: list[int]
    snapshots: deque[tuple[int, int]] = field(default_factory=deque)


class StateCache:
    """A fixed number of slots.

    Snapshots are taken after the last whole block of a prompt, after each block of the answer
    (the next replaces it, so a following turn continues from the last one), at equal distances
    within a prompt (`snapshot_distance`), and where a prompt leaves a cached prefix.

    A step reads states before it writes any, in no order between requests. So a snapshot can be
    found from the next step on, and a slot that a step reads gets no new use in that step.

    Args:
        tier: has snapshots that left the cache, as if they were blocks.

    Attributes:
        entered: snapshots of the present step.
    """

    def __init__(self, config: StateConfig, block_size: int, tier: HostTier | None = None) -> None:
        self._widest = config.spacing
        self._per_request = config.per_request
        self._block_size = block_size
        self.tier = tier
        self.pool = BlockPool(config.num_slots, self.tier.offload if self.tier else None)
        self.entered: list[int] = []
        self._held: dict[str, _Held] = {}
        self._leaving: list[tuple[int, bool]] = []  # slot, and whether to forget it

    def begin_step(self) -> None:
        """Free what the previous step was the last to read."""
        self.entered = []
        for slot, forget in self._leaving:
            self.pool.release([slot])
            if forget:
                self.pool.forget(slot)
        self._leaving.clear()

    def usable(self, hashes: Sequence[bytes]) -> int:
        """Return the most blocks of `hashes` behind which the next step may begin."""
        find, entered = self.pool.find, self.entered
        for count in range(len(hashes), 0, -1):
            slot = find(hashes[count - 1])
            if slot is not None and slot not in entered:
                return count
        return 0

    def stored(self, hashes: Sequence[bytes]) -> tuple[int, bytes | None]:
        """Return the most blocks of `hashes` behind which a state is usable or in the tier, and its
        key in the tier; None if it is usable without."""
        usable = self.usable(hashes)
        if self.tier is None:
            return usable, None
        for count in range(len(hashes), usable, -1):
            key = hashes[count - 1]
            if self.tier.find(key) and self.pool.find(key) is None:
                return count, key
        return usable, None

    def arrives(self, hashes: Iterable[bytes]) -> bool:
        """Return whether the present step computes a state after one of these blocks."""
        return any(self.pool.find(block_hash) in self.entered for block_hash in hashes)

    def has_room(self, num_leaving: int) -> bool:
        """Return whether another request can begin, once `num_leaving` have ended."""
        # One more slot: the snapshot that it begins with leaves the free ones.
        return self.pool.num_free + num_leaving * self._per_request > self._per_request

    def first(self, request_id: str) -> FirstState:
        """Return where a request begins, and its working slots."""
        return self._held[request_id].first

    def table(self, request_id: str) -> list[int]:
        """Return the state table of a request that holds blocks."""
        return self._held[request_id].table

    def admit(
        self, request: Request, prefix: int, branch: int | None, stored: bytes | None = None
    ) -> BlockLoad | None:
        """Give a request its working slots, and the state after its first `prefix` blocks.

        Args:
            branch: length in blocks of its cached prefix, with or without a state; None if there
                is no prefix cache to take snapshots for.
            stored: the key of that state in the tier.

        Returns:
            The load of that state, as `~slot`.
        """
        start, load = NO_STATE, None
        if stored is not None:
            assert self.tier is not None
            self.tier.hold(stored)  # allocating may evict others
            (start,) = self.pool.allocate(1)
            load = self.tier.load(stored, start)._replace(block=~start)
        elif prefix:
            found = self.pool.find(request.block_hashes[prefix - 1])
            assert found is not None, "the prefix has no state"
            start = found
            self.pool.share([start])
        first = FirstState(start, self.pool.allocate(self._per_request))
        last = (request.num_tokens - 1) // self._block_size
        spacing = snapshot_distance(request.num_tokens, self._widest) // self._block_size
        held = _Held(first, last, branch, spacing, [NO_STATE] * prefix)
        if prefix:
            held.snapshots.append((prefix, start))
        self._held[request.request_id] = held
        return load

    def extend(self, request_id: str, num_blocks: int) -> None:
        """Lengthen a state table to `num_blocks`, with slots for the snapshots to take."""
        held = self._held[request_id]
        for position in range(len(held.table) + 1, num_blocks + 1):
            slot = NO_STATE
            if self._wants(held, position) and self.pool.num_free > self._per_request:
                (slot,) = self.pool.allocate(1)
                held.snapshots.append((position, slot))
            held.table.append(slot)

    def _wants(self, held: _Held, position: int) -> bool:
        if held.branch is None:
            return False
        return position >= held.last or position == held.branch or position % held.spacing == 0

    def enter(self, request_id: str, hashes: Sequence[bytes], known: int, num_blocks: int) -> None:
        """Add snapshots after blocks `known` to `num_blocks` to the prefix cache.

        Earlier ones are freed when the next step is made: no later step begins there.
        """
        held = self._held[request_id]
        new = [(at, slot) for at, slot in held.snapshots if known < at <= num_blocks]
        if not new:
            return
        self.pool.remember([slot for _, slot in new], [hashes[at - 1] for at, _ in new])
        self.entered += [slot for _, slot in new]
        if self.tier:  # later ones are replaced, or saved when they leave the cache
            lasting = [(at, slot) for at, slot in new if at <= held.last]
            self.tier.save([slot for _, slot in lasting], [hashes[at - 1] for at, _ in lasting])
        while held.snapshots[0][0] < new[-1][0]:
            position, slot = held.snapshots.popleft()
            replaced = position > held.last and position % held.spacing != 0
            self._leaving.append((slot, replaced))

    def free(self, request_id: str) -> None:
        """Free a request's slots; its snapshots stay cached until their slots get a new use."""
        held = self._held.pop(request_id)
        self.pool.release(held.first.working)
        self.pool.release(slot for _, slot in held.snapshots)

    def discard(self, hashes: Iterable[bytes]) -> None:
        """Remove the snapshots after these blocks from the prefix cache: they may be wrong."""
        found = (self.pool.find(block_hash) for block_hash in hashes)
        self.forget(slot for slot in found if slot is not None)

    def forget(self, slots: Iterable[int]) -> None:
        """Remove snapshots with possibly wrong values from the prefix cache."""
        for slot in slots:
            self.pool.forget(slot)

    def reset(self) -> None:
        """Empty the prefix cache; take no more snapshots of the present requests."""
        self.pool.forget_all()
        if self.tier:
            self.tier.forget_all()
        for held in self._held.values():
            held.branch = None

    @property
    def num_held(self) -> int:
        """Return how many requests hold slots."""
        return len(self._held)

    def check_integrity(self) -> None:
        """Assert that requests and pool agree: no slot leaked, all counts are right."""
        if self.tier:
            self.tier.check_integrity()
        users = {
            name: [*held.first.working, *(slot for _, slot in held.snapshots)]
            for name, held in self._held.items()
        }
        users |= {f"leaving {i}": [slot] for i, (slot, _) in enumerate(self._leaving)}
        self.pool.check_integrity(users)
