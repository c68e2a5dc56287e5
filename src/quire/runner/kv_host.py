"""KV blocks outside of the KV cache: slots in host memory, and the copies to and from them."""

from __future__ import annotations

import logging
import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad
from quire.ops.metadata import KVCache
from quire.runner.kv_files import BlockFiles

logger = logging.getLogger(__name__)

PIECE = 256
"""Words of 8 bytes that are added up at a time; a piece that moved shows."""


class HostKV:
    """Slots of one block each, all layers in one run of bytes, and below them files.

        slot   [ layer 0: k | v (| k_scale | v_scale) | layer 1: k | v … ]

    A slot carries the key that it was stored under and a checksum; both are verified before a byte
    of it is used. Memory that no block has reached is not backed by the system.

    Args:
        kv_caches: every layer's; a block of each tensor is contiguous.
        num_slots: in host memory.

    Attributes:
        slots: int64 [num_slots, words of a block].
        files: the tier below, if there is one.
    """

    def __init__(
        self, kv_caches: list[KVCache], num_slots: int, files: BlockFiles | None = None
    ) -> None:
        self._parts = [
            _blocks_as_words(tensor)
            for cache in kv_caches
            for tensor in cache
            if tensor is not None
        ]
        self.num_words = sum(part.shape[1] for part in self._parts)
        self.slots = np.empty((num_slots, self.num_words), dtype=np.int64)
        self._keys: list[bytes | None] = [None] * num_slots
        self._checksums = [0] * num_slots
        self.files = files
        self._from_file = np.empty(self.num_words, dtype=np.int64)

    def copy(self, copies: BlockCopies) -> list[int]:
        """Do a step's copies.

        Returns:
            The KV blocks whose load failed: they hold anything.
        """
        if self.files:
            self.files.remove(copies.dropped)
            for slot, key in copies.spills:
                if self._keys[slot] == key:  # else its store failed, and a load will notice
                    self.files.write(key, self.slots[slot], self._checksums[slot])
        for block, slot, key in copies.stores:
            self._keys[slot] = None  # until the slot holds all of it
            _copy_parts(self._parts, block, self.slots[slot], out=False)
            self._checksums[slot] = checksum(self.slots[slot], key)
            self._keys[slot] = key
        return [load.block for load in copies.loads if not self._load(load)]

    def close(self) -> None:
        """Remove the files and free the memory."""
        if self.files:
            self.files.close()
        self.slots = np.empty((0, self.num_words), dtype=np.int64)

    def _load(self, load: BlockLoad) -> bool:
        try:
            row = self._from_disk(load.key) if load.slot == ON_DISK else self._from_slot(load)
        except (OSError, ValueError) as error:
            logger.warning("A KV block cannot be loaded and is computed again: %s", error)
            return False
        _copy_parts(self._parts, load.block, row, out=True)
        return True

    def _from_slot(self, load: BlockLoad) -> NDArray[np.int64]:
        slot, key = load.slot, load.key
        if self._keys[slot] != key:
            raise ValueError(f"slot {slot} of host memory was never written")
        if checksum(self.slots[slot], key) != self._checksums[slot]:
            raise ValueError(f"slot {slot} of host memory has changed since it was written")
        row: NDArray[np.int64] = self.slots[slot]
        return row

    def _from_disk(self, key: bytes) -> NDArray[np.int64]:
        if self.files is None:
            raise ValueError("there is no disk tier")
        expected = self.files.read(key, self._from_file)
        if checksum(self._from_file, key) != expected:
            raise ValueError(f"{self.files.path(key)} has changed since it was written")
        return self._from_file


def checksum(row: NDArray[np.int64], key: bytes) -> int:
    """32 bits of a slot's content and key: the CRC of the sums of its pieces.

    Adding reads memory as fast as it comes; a CRC of all of it would take longer than the copy.
    """
    whole = len(row) // PIECE * PIECE
    sums = np.add.reduce(row[:whole].reshape(-1, PIECE), axis=1)
    return zlib.crc32(row[whole:].data, zlib.crc32(sums.data, zlib.crc32(key)))


def _blocks_as_words(tensor: Tensor) -> NDArray[np.int64]:
    """[num_blocks, words of a block]: a view of the cache's own memory."""
    flat = tensor.as_strided((tensor.shape[0], tensor[0].numel()), (tensor.stride(0), 1))
    words: NDArray[np.int64] = flat.view(torch.int64).numpy()
    return words


def _copy_parts(
    parts: list[NDArray[np.int64]], block: int, row: NDArray[np.int64], *, out: bool
) -> None:
    """Between one block of every tensor and a slot: into the block if `out`."""
    start = 0
    for part in parts:
        end = start + part.shape[1]
        if out:
            part[block] = row[start:end]
        else:
            row[start:end] = part[block]
        start = end
