"""The blocks of a request that are stored already, and those of its table that it holds."""

from __future__ import annotations

from dataclasses import field

from quire.kv.prefix import NO_BLOCK, TO_LOAD
from quire.system.records import dataclass


@dataclass(slots=True)
class Stored:
    """The first blocks of a request that the KV cache or the host tier has.

    Attributes:
        blocks: by position: a block of the KV cache, `TO_LOAD` or `NO_BLOCK`.
        num_tokens: tokens that the blocks hold; only swapped blocks may end within a block.
        keys: hashes of the blocks to load; empty if these were swapped out.
        state: hash of the state to load.
        num_from_files: how many of the blocks are only in files.
        arriving: another request is loading one of them.
        private: they must not enter the prefix cache.
    """

    blocks: list[int]
    num_tokens: int
    keys: list[bytes] = field(default_factory=list)
    state: bytes | None = None
    num_from_files: int = 0
    arriving: bool = False
    private: bool = False

    @property
    def num_loads(self) -> int:
        return self.blocks.count(TO_LOAD)

    @property
    def is_swapped(self) -> bool:
        return not self.keys and self.state is None


def held_blocks(blocks: list[int]) -> list[int]:
    """Return `blocks` without the leading entries before the window."""
    if not blocks or blocks[0] != NO_BLOCK:
        return blocks
    return blocks[blocks.count(NO_BLOCK) :]
