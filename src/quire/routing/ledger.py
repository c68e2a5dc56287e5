"""Which replica has borrowed which KV blocks of another (see `kv.loans`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from quire.core.kv_sharing import SharedKV
from quire.core.messages import BlocksLent, BlocksReturned, CoreInput
from quire.core.options import LentBlocks


class Ledger:
    """The loans between replicas. Each ends once: the borrower returns it, or is lost.

    The owner is lost more easily: its blocks stay in the shared memory, and its successor learns
    which of them are lent before it gets a request.

    Args:
        send: sends a message to a replica if that is ready.
    """

    def __init__(self, shared: SharedKV, send: Callable[[int, CoreInput], None]) -> None:
        self._stride = shared.stride
        self._send = send
        self._held: list[Counter[int]] = [Counter() for _ in range(shared.count)]
        self._new: list[list[LentBlocks]] = [[] for _ in range(shared.count)]
        """Loans of each replica that `_held` does not count yet: a hand-off waits for no counts."""
        self.num_lent = 0
        """Loans of a block since the start."""

    def __len__(self) -> int:
        return sum(self._counted(borrower).total() for borrower in range(len(self._held)))

    def _counted(self, borrower: int) -> Counter[int]:
        held, new = self._held[borrower], self._new[borrower]
        for lent in new:
            held.update(lent.blocks)
        new.clear()
        return held

    def lend(self, borrower: int, lent: LentBlocks) -> None:
        """Note blocks that a replica may read until it returns them."""
        self._new[borrower].append(lent)
        self.num_lent += lent.count

    def end(self, borrower: int, blocks: Sequence[int]) -> None:
        self._held[borrower] = self._counted(borrower) - Counter(blocks)
        self.send_back(blocks)

    def send_back(self, blocks: Sequence[int]) -> None:
        """Tell the owners that loans of these blocks have ended."""
        by_owner: defaultdict[int, list[int]] = defaultdict(list)
        for block in blocks:
            by_owner[block // self._stride].append(block)
        for owner, own in by_owner.items():
            self._send(owner, BlocksReturned(own))

    def lose(self, borrower: int) -> None:
        """End all loans of a lost replica."""
        held, self._held[borrower] = self._counted(borrower), Counter()
        self.send_back([*held.elements()])

    def restore(self, owner: int) -> None:
        """Tell a new core which of its blocks its predecessor lent."""
        held = [self._counted(borrower) for borrower in range(len(self._held))]
        blocks = [b for each in held for b in each.elements() if b // self._stride == owner]
        if blocks:
            self._send(owner, BlocksLent(blocks))

    def clear(self) -> None:
        """Forget all loans: no core runs."""
        for borrower in range(len(self._held)):
            self._counted(borrower).clear()
