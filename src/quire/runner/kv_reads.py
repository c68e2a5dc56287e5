"""Reads KV blocks from files, or from other servers, while steps compute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import BlockLoad

READ_BYTES = 256 * 2**20
"""Most bytes that are read ahead of the steps that take them."""

Row = NDArray[np.int64]


class BlockSource(Protocol):
    """A place that stores blocks by key."""

    def read(self, key: bytes, row: Row) -> int:
        """Read a block into `row`; return the checksum that was stored with it.

        Raises:
            OSError: the block is missing or cannot be read.
            ValueError: it is damaged, or another model's.
        """

    def expect(self, keys: Iterable[bytes]) -> None:
        """Note what `read` will be asked for, in this order."""

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove damaged blocks."""

    def close(self) -> None:
        """End what is open."""


class ReadBlock(NamedTuple):
    """A block that was read; `error` says why it was not."""

    load: BlockLoad
    row: Row
    checksum: int
    error: Exception | None


class BlockReader:
    """Reads blocks in the order of their loads.

    Args:
        sources: by `BlockLoad.slot`.
        num_words: int64 words of a block.

    Attributes:
        seconds: time that the thread has read.
    """

    def __init__(self, sources: Mapping[int, BlockSource], num_words: int) -> None:
        self._sources = sources
        self._num_words = num_words
        self._most_done = max(1, READ_BYTES // (8 * max(num_words, 1)))
        self._lock = threading.Condition()
        self._queue: deque[BlockLoad] = deque()
        self._wanted: dict[int, BlockLoad] = {}
        self._done: list[ReadBlock] = []
        self._taken: list[Row] = []
        self._free: list[Row] = []
        """Rows for further blocks: the system takes as long to give new memory as a copy takes."""
        self._closed = False
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._read_all, name="kv-reads", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> list[int]:
        """Return the blocks that `take` has not returned."""
        return list(self._wanted)

    def begin(self, loads: Iterable[BlockLoad]) -> None:
        with self._lock:
            for load in loads:
                self._wanted[load.block] = load
                self._queue.append(load)
                if source := self._sources.get(load.slot):
                    source.expect([load.key])
            self._lock.notify_all()

    def cancel(self, blocks: Iterable[int]) -> None:
        """Forget the loads of these blocks, which have a new use."""
        with self._lock:
            for block in blocks:
                self._wanted.pop(block, None)
            self._done = [read for read in self._done if self._wants(read.load)]
            self._lock.notify_all()

    def take(self, wait: float) -> list[ReadBlock]:
        """Return the blocks read since the last call; wait up to `wait` seconds for the others.

        Their rows hold until the next call.
        """
        with self._lock:
            self._lock.wait_for(lambda: len(self._done) == self._most_ready(), wait)
            done, self._done = self._done, []
            for read in done:
                del self._wanted[read.load.block]
            self._free += self._taken
            self._taken = [read.row for read in done]
            if not self._wanted:
                self._free.clear()
            self._lock.notify_all()
        return done

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._thread.join()

    def _most_ready(self) -> int:
        return min(len(self._wanted), self._most_done)

    def _wants(self, load: BlockLoad) -> bool:
        return self._wanted.get(load.block) is load

    def _read_all(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(
                    lambda: self._closed or (self._queue and len(self._done) < self._most_done)
                )
                if self._closed:
                    return
                load = self._queue.popleft()
                if not self._wants(load):
                    continue
                row = self._free.pop() if self._free else np.empty(self._num_words, np.int64)
            read = self._read(load, row)
            with self._lock:
                if self._wants(load):
                    self._done.append(read)
                    self._lock.notify_all()

    def _read(self, load: BlockLoad, row: Row) -> ReadBlock:
        error: Exception | None = None
        begin = time.monotonic()
        try:
            checksum = self._sources[load.slot].read(load.key, row)
        except Exception as failure:  # whatever it is, the block can be computed
            checksum, error = 0, failure
        self.seconds += time.monotonic() - begin
        return ReadBlock(load, row, checksum, error)
