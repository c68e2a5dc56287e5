"""KV blocks in files: written in the background, read when a step needs them."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from queue import Queue
from typing import IO

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

PREFIX = "quire-kv-"
QUEUE_BYTES = 128 * 2**20
_LOCK = "in-use"
_CHECKSUM = 8
"""Bytes of the checksum in front of a block."""


class BlockFiles:
    """One file per block, in a folder of this engine that it removes when it ends.

    Blocks do not outlive the engine, because they are valid only for the same weights, dtypes and
    kernels. The next engine removes the files of a killed one.

    Args:
        directory: parent of the folder; created if needed.
        block_bytes: size of a block. `write` blocks when `QUEUE_BYTES` of copies are waiting.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self, directory: Path, block_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(directory)
        self.folder, self._folder_lock = _make_folder(directory)
        self._lock = threading.Lock()
        self._unwritten: dict[bytes, tuple[NDArray[np.int64], int]] = {}
        self._queue: Queue[bytes | None] = Queue(max(1, QUEUE_BYTES // block_bytes))
        self._failures = 0
        self._writer = threading.Thread(target=self._write_all, name="kv-files", daemon=True)
        self._writer.start()

    def path(self, key: bytes) -> Path:
        """Return the file of a block."""
        return self.folder / key.hex()

    def write(self, key: bytes, row: NDArray[np.int64], checksum: int) -> None:
        """Write a block in the background; `row` is copied. `read` finds it immediately."""
        self._unwritten[key] = row.copy(), checksum
        self._queue.put(key)

    def read(self, key: bytes, row: NDArray[np.int64]) -> int:
        """Read a block into `row`.

        Returns:
            The checksum that was stored with it; the caller must check it.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: the file is too short.
        """
        if waiting := self._unwritten.get(key):
            row[:] = waiting[0]
            return waiting[1]
        head = bytearray(_CHECKSUM)
        fd = os.open(self.path(key), os.O_RDONLY)
        try:
            size = os.preadv(fd, [head, row.data.cast("B")], 0)
        finally:
            os.close(fd)
        if size != _CHECKSUM + row.nbytes:
            raise ValueError(f"{self.path(key)} has {size} bytes of {_CHECKSUM + row.nbytes}")
        return int.from_bytes(head, "little")

    def remove(self, keys: list[bytes]) -> None:
        """Remove these blocks' files, and cancel pending writes."""
        for key in keys:
            with self._lock:
                written = self._unwritten.pop(key, None) is None
            if written:
                _remove(self.path(key))

    def flush(self) -> None:
        """Wait until all blocks are written."""
        self._queue.join()

    def close(self) -> None:
        """Remove all files and the folder."""
        with self._lock:
            self._unwritten.clear()
        self._queue.put(None)
        self._writer.join()
        self._folder_lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_all(self) -> None:
        while (key := self._queue.get()) is not None:
            waiting = self._unwritten.get(key)
            if waiting is not None:  # else it was removed meanwhile
                self._write(key, *waiting)
            self._queue.task_done()

    def _write(self, key: bytes, row: NDArray[np.int64], checksum: int) -> None:
        path, kept = self.path(key), True
        try:
            with path.open("wb") as file:
                file.write(checksum.to_bytes(_CHECKSUM, "little"))
                file.write(row.data.cast("B"))
        except OSError as error:
            # No error is reported: a block without its file is computed again.
            if not self._failures:
                logger.warning("KV blocks cannot be written to %s: %s", self.folder, error)
            self._failures += 1
            kept = False
        with self._lock:
            waiting = self._unwritten.get(key)
            if waiting is not None and waiting[0] is row:
                del self._unwritten[key]
            else:  # removed while it was written
                kept = False
            if not kept:
                _remove(path)


def _make_folder(directory: Path) -> tuple[Path, IO[str]]:
    """Return a new folder, and the open file whose lock marks it as in use."""
    hidden = Path(tempfile.mkdtemp(prefix="." + PREFIX, dir=directory))
    lock = (hidden / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Other engines see it only now.
    return hidden.rename(directory / hidden.name[1:]), lock


def _remove_abandoned(directory: Path) -> None:
    """Remove the folders of ended engines, which nobody has locked."""
    for folder in directory.glob(PREFIX + "*"):
        with contextlib.suppress(OSError), (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
