"""KV blocks outside of the KV cache: slots in host memory, and copies to and from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad
from quire.core.config import EngineConfig, TierConfig
from quire.core.errors import ConfigError
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
            for slot, key in copies.spills:
                if self._keys[slot] == key:  # else its store failed, which a load notices
                    self.files.write(key, self.slots[slot], self._checksums[slot])
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
        """Remove the files and free the memory."""
        if self.files:
            self.files.close()
        if self.states:
            self.states.close()
        self.slots = np.empty((0, self.num_words), dtype=np.int64)

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
        except (OSError, ValueError) as error:
            _warn(error)
            return False
        if self._copier.load([(load.block, self._from_file, load.key)]) != [expected]:
            _warn(f"{self.files.path(load.key)} changed after it was written")
            return False
        return True


def _warn(reason: object) -> None:
    logger.warning("A KV block cannot be loaded and is computed again: %s", reason)


def open_host_tier(
    config: EngineConfig, kv_caches: list[KVCache], states: list[LayerStates]
) -> HostKV | None:
    """Return the slots and files for blocks and states that leave the cache; None if off."""
    tiers = config.tiers
    if not tiers.num_slots:
        return None
    host = _open(config, tiers, kv_caches)
    logger.info(
        "host KV %.2f GiB: %d blocks for preempted requests, %d for evicted prefixes",
        host.slots.nbytes / 2**30, tiers.num_swap_slots, tiers.num_offload_slots,
    )  # fmt: skip
    if tiers.num_state_slots:
        host.states = _open(config, tiers.of_states, states)
        logger.info(
            "host states %.2f GiB: %d", host.states.slots.nbytes / 2**30, tiers.num_state_slots
        )
    return host


def _open(
    config: EngineConfig, tiers: TierConfig, caches: Sequence[KVCache | LayerStates]
) -> HostKV:
    host = HostKV(caches, tiers.num_slots, threads=config.num_threads)
    block_bytes = host.num_words * 8
    if tiers.num_files and tiers.directory:
        try:
            host.files = BlockFiles(Path(tiers.directory).expanduser(), block_bytes)
        except OSError as error:
            raise ConfigError(
                f"KV blocks cannot be written to {tiers.directory}: {error}.",
                param="kv_offloading_dir",
            ) from error
        logger.info(
            "disk KV %.2f GiB: %d blocks in %s",
            tiers.num_files * block_bytes / 2**30, tiers.num_files, host.files.folder,
        )  # fmt: skip
    return host
