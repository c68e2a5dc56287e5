"""Whom a worker that has a share of a model shares it with."""

from __future__ import annotations

from typing import Protocol


class Peers(Protocol):
    """The other ranks of a worker that has a share of a model.

    Attributes:
        memory: descriptor of the memory in which they meet (see `ops.rank_group`).
    """

    @property
    def memory(self) -> int: ...

    def agree(self, num_blocks: int) -> int:
        """The most KV blocks that fit on every rank, of which so many fit on this one."""
