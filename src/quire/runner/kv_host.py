"""KV blocks outside of the KV cache: slots in host memory, and copies to and from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad, BlockSave
from quire.core.config import EngineConfig, TierConfig
from quire.core.errors import ConfigError
from quire.kv.lower_tiers import BlockFolder
from quire.ops.copiers import open_copier
from quire.ops.metadata import KVCache, LayerStates
from quire.runner.kv_files import BlockFiles

logger = logging.getLogger(__name__)


class HostKV:
    """Slots of one block each, with all its layers, and a tier of files below.

        slot   [ layer 0: k | v (| k_scale | v_scale) | layer 1: k | v … ]

    A slot has the block's key, and a checksum of both. A load computes the checksum while it
    copies, so a damaged block overwrites only its own target. The system backs memory with RAM only
    when a block is written. States have another `HostKV`, in which a state stands for a block.

    Args:
        caches: one per layer; a block, or a state, of each tensor is contiguous.
        num_slots: slots in host memory.
        threads: number of threads that copy.

    Attributes:
        slots: int64 [num_slots, words of a block].
        files: the tier below, if there is one.
        states: the slots of states, if these are copied.
    """

    def __init__(
        self,
        caches: Sequence[KVCache | LayerStates],
        num_slots: int,
        files: BlockFiles | None = None,
        threads: int = 1,
    ) -> None:
        tensors = [tensor for cache in caches for tensor in cache.tensors]
        self._copier = open_copier(tensors, threads)
        self.num_words = self._copier.block_bytes // 8
        self.slots = np.empty((num_slots, self.num_words), dtype=np.int64)
        self._keys: list[bytes | None] = [None] * num_slots
        self._checksums = [0] * num_slots
        self.files = files
        self.states: HostKV | None = None
        self._from_file = np.empty(self.num_words, dtype=np.int64)

    def copy(self, copies: BlockCopies) -> list[int]:
        """Do a step's copies.

        Returns:
            The KV blocks whose load failed, and `~slot` of states; their content is undefined.
        """
        failed = self._copy(copies)
        if self.states and copies.states:
            failed += [~slot for slot in self.states.copy(copies.states)]
        return failed

    def _copy(self, copies: BlockCopies) -> list[int]:
        if self.files:
            self.files.remove(copies.dropped)
            self._save(self.files, copies.saves)
        for _, slot, _ in copies.stores:
            self._keys[slot] = None  # until the slot is complete
        stored = self._copier.store(
            [(block, self.slots[slot], key) for block, slot, key in copies.stores]
        )
        for (_, slot, key), checksum in zip(copies.stores, stored, strict=True):
            self._keys[slot], self._checksums[slot] = key, checksum
        failed = self._load_slots([load for load in copies.loads if load.slot != ON_DISK])
        from_files = [load for load in copies.loads if load.slot == ON_DISK]
        return failed + [load.block for load in from_files if not self._load_file(load)]

    def close(self) -> None:
        """Finish the files and free the memory."""
        if self.files:
            self.files.close()
        if self.states:
            self.states.close()
        self.slots = np.empty((0, self.num_words), dtype=np.int64)

    def _save(self, files: BlockFiles, saves: list[BlockSave]) -> None:
        """Copy blocks for their files; leave out those that the disk is too slow for."""
        taken = saves[: files.room]
        files.num_skipped += len(saves) - len(taken)
        rows = [np.empty(self.num_words, dtype=np.int64) for _ in taken]
        moves = [(save.block, row, save.key) for save, row in zip(taken, rows, strict=True)]
        for (_, row, key), checksum in zip(moves, self._copier.store(moves), strict=True):
            files.write(key, row, checksum)

    def _load_slots(self, loads: list[BlockLoad]) -> list[int]:
        """Load from host memory; return the blocks whose load failed."""
        found = [load for load in loads if self._keys[load.slot] == load.key]
        sums = self._copier.load([(block, self.slots[slot], key) for slot, block, key in found])
        sound = {
            load.block
            for load, checksum in zip(found, sums, strict=True)
            if checksum == self._checksums[load.slot]
        }
        failed = [load for load in loads if load.block not in sound]
        for load in failed:
            was_stored = self._keys[load.slot] == load.key
            _warn(
                f"slot {load.slot} of host memory "
                + ("changed after it was written" if was_stored else "was never written")
            )
        return [load.block for load in failed]

    def _load_file(self, load: BlockLoad) -> bool:
        """Load from a file; return whether it succeeded."""
        if self.files is None:
            _warn("there is no disk tier")
            return False
        try:
            expected = self.files.read(load.key, self._from_file)
        except FileNotFoundError:  # another engine needed the room
            return False
        except (OSError, ValueError) as error:
            _warn(error)
        else:
            if self._copier.load([(load.block, self._from_file, load.key)]) == [expected]:
                return True
            _warn(f"{self.files.folder.path(load.key)} changed after it was written")
        self.files.remove([load.key])  # it may be written again
        return False


def _warn(reason: object) -> None:
    logger.warning("A KV block cannot be loaded and is computed again: %s", reason)


def open_host_tier(
    config: EngineConfig,
    kv_caches: list[KVCache],
    states: list[LayerStates],
    folder: BlockFolder | None = None,
) -> HostKV | None:
    """Return the slots and files for blocks and states that leave the cache; None if off.

    Args:
        folder: for the files, if these are enabled.
    """
    tiers = config.tiers
    if not tiers.enabled:
        return None
    host = _open(config, tiers, kv_caches, folder)
    if tiers.num_slots:
        logger.info(
            "host KV %.2f GiB: %d blocks for preempted requests, %d for evicted prefixes",
            host.slots.nbytes / 2**30, tiers.num_swap_slots, tiers.num_offload_slots,
        )  # fmt: skip
    if states and tiers.of_states.enabled:
        below = folder.of_states if folder else None
        host.states = _open(config, tiers.of_states, states, below)
        logger.info(
            "host states %.2f GiB: %d", host.states.slots.nbytes / 2**30, tiers.num_state_slots
        )
    return host


def _open(
    config: EngineConfig,
    tiers: TierConfig,
    caches: Sequence[KVCache | LayerStates],
    folder: BlockFolder | None,
) -> HostKV:
    host = HostKV(caches, tiers.num_slots, threads=config.num_threads)
    if folder is not None:
        try:
            host.files = BlockFiles(folder, host.num_words * 8, tiers.disk_bytes)
        except OSError as error:
            raise ConfigError(
                f"KV blocks cannot be written to {tiers.directory}: {error}.",
                param="kv_offloading_dir",
            ) from error
        logger.info(
            "disk KV: files of at most %.2f GiB in %s", tiers.disk_bytes / 2**30, folder.folder
        )
    return host
