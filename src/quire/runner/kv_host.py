"""KV blocks outside of the KV cache: slots in host memory, and copies to and from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad, BlockSave
from quire.core.config import EngineConfig, TierConfig
from quire.core.errors import ConfigError
from quire.kv.lower_tiers import BlockFolder
from quire.ops.copiers import open_copier
from quire.ops.metadata import KVCache, LayerStates
from quire.runner.kv_files import BlockFiles
from quire.runner.kv_reads import BlockReader, BlockSource, ReadBlock
from quire.system.records import dataclass

logger = logging.getLogger(__name__)

WAIT_SECONDS = 5e-3
"""How long a step that computes nothing waits for its loads."""


@dataclass(slots=True)
class CopyReport:
    """The result of a step's copies; see `ModelOutput`."""

    failed: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    reads: tuple[float, float] = (0.0, 0.0)
    unsaved: int = 0


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
        self._sources: dict[int, BlockSource] = {ON_DISK: files} if files else {}
        self._reader: BlockReader | None = None
        self._read_seconds = 0.0

    @property
    def is_reading(self) -> bool:
        """Return whether loads of earlier steps have not ended."""
        own = self._reader is not None and bool(self._reader.pending)
        return own or (self.states is not None and self.states.is_reading)

    def copy(self, copies: BlockCopies | None, *, wait: bool = False) -> CopyReport:
        """Do a step's copies, and take what was read for earlier steps.

        Args:
            wait: wait shortly for loads, because the step computes nothing.

        Returns:
            The loads that failed, whose blocks have undefined content, and those that go on.
        """
        report = CopyReport(self._copy(copies) if copies else [])
        self._take(report, WAIT_SECONDS if wait else 0.0)
        report.unsaved = 0 if self.files is None else self.files.num_failed
        if self.states:
            of_states = self.states.copy(copies.states if copies else None, wait=wait)
            report.failed += [~slot for slot in of_states.failed]
            report.pending += [~slot for slot in of_states.pending]
            (own, seconds), (slots, more) = report.reads, of_states.reads
            worth = slots * self.states.num_words / max(self.num_words, 1)
            report.reads = own + worth, seconds + more
            report.unsaved += of_states.unsaved
        return report

    def _copy(self, copies: BlockCopies) -> list[int]:
        """Do the copies of host memory, and begin the others; return the blocks that failed."""
        if self._reader:
            self._reader.cancel(copies.cancelled)
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
        below = [load for load in copies.loads if not load.from_memory]
        if below:
            self._open_reader().begin(below)
        return self._load_slots([load for load in copies.loads if load.from_memory])

    def add_files(self, files: BlockFiles) -> None:
        """Add a tier of files; no load may have begun."""
        self.files = files
        self.add_source(ON_DISK, files)

    def add_source(self, place: int, source: BlockSource) -> None:
        """Add a tier to load from; `place` is the `slot` of its loads."""
        self._sources[place] = source

    def _open_reader(self) -> BlockReader:
        """Return the reader; its thread starts with the first load."""
        self._reader = self._reader or BlockReader(self._sources, self.num_words)
        return self._reader

    def _take(self, report: CopyReport, wait: float) -> None:
        """Copy the blocks that were read meanwhile, and add to the report."""
        reader = self._reader
        if reader is None or not reader.pending:
            return
        done = reader.take(wait)
        read = [each for each in done if each.error is None]
        sums = self._copier.load([(r.load.block, r.row, r.load.key) for r in read])
        for each, checksum in zip(read, sums, strict=True):
            if checksum != each.checksum:
                report.failed.append(self._lose(each, "it changed after it was written"))
        for each in done:
            if each.error is not None:
                report.failed.append(self._lose(each, each.error))
        report.pending = reader.pending
        report.reads = float(len(done)), reader.seconds - self._read_seconds
        self._read_seconds = reader.seconds

    def _lose(self, read: ReadBlock, why: object) -> int:
        """Remove a block that could not be loaded, so that it may be written again."""
        if not isinstance(why, FileNotFoundError):  # another engine may have needed the room
            _warn(why)
            if source := self._sources.get(read.load.slot):
                source.remove([read.load.key])
        return read.load.block

    def close(self) -> None:
        """Finish the files and free the memory."""
        if self._reader:
            self._reader.close()
        for source in self._sources.values():
            source.close()
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
            block_bytes, read_only = host.num_words * 8, tiers.read_only
            host.add_files(BlockFiles(folder, block_bytes, tiers.disk_bytes, read_only=read_only))
        except OSError as error:
            raise ConfigError(
                f"KV blocks cannot be written to {tiers.directory}: {error}.",
                param="kv_offloading_dir",
            ) from error
        logger.info(
            "disk KV: files of at most %.2f GiB in %s", tiers.disk_bytes / 2**30, folder.folder
        )
    return host
