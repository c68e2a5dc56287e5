"""KV blocks that replicas lend each other in shared memory, without copying them.

    producer   lends a prompt's blocks: they keep a user, so nothing overwrites them
    consumer   finds them by hash in its prefix cache, as long as one of its requests reads them;
               it copies them if more than half of the producer's blocks are lent
    front end  takes the loans of a lost consumer back, and tells a new producer of its
               predecessor's loans (`routing.ledger`)

A message about blocks is sent after the step that wrote them, so their bytes are complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress

import numpy as np

from quire.core.options import NOT_LENT, LentBlocks
from quire.core.request import Request
from quire.kv.block_pool import BlockPool, packed


class Loans:
    """The loans of one block pool. A block may be lent several times at once."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._lent = np.zeros(pool.end, np.int32)
        self.num_lent = 0
        """Blocks that are lent."""
        self._borrowed: dict[str, Sequence[int]] = {}
        self._again: Counter[int] = Counter()
        """Loans of a block beyond its first one."""

    # -- the owner -------------------------------------------------------------------------

    def lend(self, hashes: Sequence[bytes]) -> LentBlocks | None:
        """Lend the blocks with these hashes, which are cached but for those before a window."""
        found = (
            self._pool.find_all(hashes) if (known := self._pool.find_known(hashes)) is None else []
        )
        blocks = known or [block for block in found if block is not None]
        if not blocks:
            return None
        self._pool.share(blocks)
        numbers = packed(blocks)
        index = np.frombuffer(numbers, np.int32)
        self.num_lent += len(blocks) - int(np.count_nonzero(self._lent[index]))
        self._lent[index] += 1
        pressed = 2 * self.num_lent > self._pool.num_blocks  # prompts of any length wait for room
        if len(blocks) < len(found):
            numbers = packed([NOT_LENT if block is None else block for block in found])
        return LentBlocks(hashes[-1], numbers, copied=pressed)

    def restore(self, blocks: Sequence[int]) -> None:
        """Lend blocks of an empty pool as its predecessor did."""
        self._pool.reserve(blocks)
        np.add.at(self._lent, blocks, 1)
        self.num_lent = int(np.count_nonzero(self._lent))

    def take_back(self, blocks: Sequence[int]) -> None:
        """End loans, one of each listed block."""
        np.subtract.at(self._lent, blocks, 1)
        self.num_lent = int(np.count_nonzero(self._lent))
        self._pool.release(reversed(blocks))

    # -- the borrower ------------------------------------------------------------------------

    def borrow(self, request_id: str, lent: LentBlocks, hashes: Sequence[bytes]) -> None:
        """Keep lent blocks at least until a request has ended.

        Args:
            hashes: of the request's own blocks. If the lent ones have others, nobody finds them.
        """
        numbers = lent.numbers.tolist()
        end = len(numbers)
        named = end <= len(hashes) and hashes[end - 1] == lent.last
        names: Sequence[bytes] | None = hashes[:end] if named else None
        if lent.count < end:
            is_lent = [number != NOT_LENT for number in numbers]
            numbers, names = [*compress(numbers, is_lent)], names and [*compress(names, is_lent)]
        if self._pool.left:  # not returned yet
            self._again.update({*self._pool.left} & {*numbers})
        self._again.update(self._pool.adopt(numbers, names))
        self._borrowed[request_id] = numbers

    def settle(self, needs: Callable[[str], bool]) -> list[int]:
        """Let go of the blocks that requests do not need any more; return what nobody reads, an
        entry per loan."""
        ended = [name for name in self._borrowed if not needs(name)]
        for name in ended:
            self._pool.release(self._borrowed.pop(name))
        if not self._pool.left:
            return []
        # A block that was borrowed again since then is returned with its later loans.
        left = [b for b in dict.fromkeys(self._pool.left) if not self._pool.ref_count(b)]
        self._pool.left.clear()
        return left + [block for block in left for _ in range(self._again.pop(block, 0))]

    def counts(self) -> Counter[int]:
        """Return the users that are loans, by block."""
        counts = Counter({int(b): int(self._lent[b]) for b in np.flatnonzero(self._lent)})
        for blocks in self._borrowed.values():
            counts.update(blocks)
        return counts


def copies_loan(request: Request) -> bool:
    transfer = request.options.kv_transfer
    return transfer is not None and transfer.lent is not None and transfer.lent.copied
