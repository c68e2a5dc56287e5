"""What the modelled executor keeps of KV blocks outside of its KV cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import ON_DISK, BlockCopies


class MisplacedBlockError(Exception):
    """A copy was asked for of something that is not there."""


class ModelledHostTier:
    """Slots and files, by the key that they were stored under.

    Args:
        corrupts: asked before each block is loaded; True is a checksum that does not hold.
    """

    def __init__(self, corrupts: Callable[[], bool]) -> None:
        self._corrupts = corrupts
        self._slots: dict[int, tuple[bytes, NDArray[np.uint64]]] = {}
        self._files: dict[bytes, NDArray[np.uint64]] = {}

    def copy(self, copies: BlockCopies, blocks: NDArray[np.uint64]) -> list[int]:
        """Do what `runner.kv_host` does.

        Args:
            blocks: the KV cache, uint64 [num_blocks, block_size].

        Returns:
            The blocks whose load failed.

        Raises:
            MisplacedBlockError: a real load would fail, and nothing has been damaged.
        """
        for key in copies.dropped:
            self._files.pop(key, None)
        for slot, key in copies.spills:
            self._files[key] = self._stored(slot, key)
        for block, slot, key in copies.stores:
            self._slots[slot] = key, blocks[block].copy()
        failed = []
        for slot, block, key in copies.loads:
            content = self._file(key) if slot == ON_DISK else self._stored(slot, key)
            if self._corrupts():
                failed.append(block)
                content = np.zeros_like(content)
            blocks[block] = content
        return failed

    def _stored(self, slot: int, key: bytes) -> NDArray[np.uint64]:
        held = self._slots.get(slot)
        if held is None or held[0] != key:
            raise MisplacedBlockError(f"slot {slot} does not hold {key.hex()}")
        return held[1]

    def _file(self, key: bytes) -> NDArray[np.uint64]:
        if key not in self._files:
            raise MisplacedBlockError(f"there is no file of {key.hex()}")
        return self._files[key]
