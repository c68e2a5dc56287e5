"""The other ranks, as a worker with a share of a model sees them."""

from __future__ import annotations

from typing import Protocol


class Peers(Protocol):
    """The other ranks of a worker that has a share of a model.

    Attributes:
        memory: descriptor of their shared memory (see `ops.rank_group`).
    """

    @property
    def memory(self) -> int: ...

    def agree(self, num_blocks: int) -> int:
        """Return the number of KV blocks that fit on every rank; `num_blocks` fit on this one."""
