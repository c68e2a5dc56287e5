"""What the modelled executor keeps of KV blocks outside of its KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import ON_DISK, BlockCopies


class MisplacedBlockError(Exception):
    """A copy was asked for of something that is not there."""


class ModelledFiles:
    """Files that another engine may evict. It is a tier below host memory.

    Args:
        most: files that it keeps.
    """

    place = ON_DISK

    def __init__(self, most: int) -> None:
        self._most = most
        self.contents: dict[bytes, NDArray[np.uint64]] = {}
        self.used = set[bytes]()
        self._states: ModelledFiles | None = None

    @property
    def of_states(self) -> ModelledFiles:
        self._states = self._states or ModelledFiles(self._most)
        return self._states

    def find(self, key: bytes) -> bool:
        return key in self.contents

    def use(self, keys: Iterable[bytes]) -> None:
        self.used.update(keys)

    def lose(self, key: bytes) -> None:
        pass

    def forget_all(self) -> None:
        self.contents.clear()

    def promise(self, keys: Iterable[bytes]) -> None:
        pass

    def write(self, key: bytes, content: NDArray[np.uint64]) -> None:
        self.contents[key] = content
        if len(self.contents) > self._most:
            del self.contents[next(iter(self.contents))]


class ModelledHostTier:
    """Slots and files, by the key that they were stored under.

    Args:
        corrupts: asked before each block is loaded; True is a checksum that does not hold.
        delays: asked of each block from a file in each step; True means that it takes longer.
    """

    def __init__(
        self,
        corrupts: Callable[[], bool],
        files: ModelledFiles,
        delays: Callable[[], bool] = lambda: False,
    ) -> None:
        self._corrupts = corrupts
        self._delays = delays
        self._pending: dict[int, bytes] = {}
        self._files = files
        self._slots: dict[int, tuple[bytes, NDArray[np.uint64]]] = {}

    def copy(
        self, copies: BlockCopies | None, blocks: NDArray[np.uint64]
    ) -> tuple[list[int], list[int]]:
        """Do what `runner.kv_host` does.

        Args:
            blocks: the KV cache, uint64 [num_blocks, block_size].

        Returns:
            The blocks whose load failed, and those whose load goes on.

        Raises:
            MisplacedBlockError: a real load would fail, and nothing has been damaged.
        """
        copies = copies or BlockCopies([], [], [], [])
        for block in copies.cancelled:
            self._pending.pop(block, None)
        for key in copies.dropped:
            self._files.contents.pop(key, None)
        for block, key in copies.saves:
            self._files.write(key, blocks[block].copy())
        for block, slot, key in copies.stores:
            self._slots[slot] = key, blocks[block].copy()
        failed = []
        for slot, block, key in copies.loads:
            if slot == ON_DISK:
                self._pending[block] = key
                continue
            blocks[block] = self._stored(slot, key)
            if self._corrupts():
                failed.append(block)
                blocks[block] = 0
        return failed + self._read(blocks), list(self._pending)

    def _read(self, blocks: NDArray[np.uint64]) -> list[int]:
        """Load from files; return the blocks whose load failed."""
        failed = []
        for block, key in list(self._pending.items()):
            if self._delays():
                continue
            del self._pending[block]
            content = self._files.contents.get(key)
            if content is None or self._corrupts():
                self._files.contents.pop(key, None)
                failed.append(block)
                blocks[block] = 0
            else:
                blocks[block] = content
        return failed

    def _stored(self, slot: int, key: bytes) -> NDArray[np.uint64]:
        held = self._slots.get(slot)
        if held is None or held[0] != key:
            raise MisplacedBlockError(f"slot {slot} does not hold {key.hex()}")
        return held[1]
