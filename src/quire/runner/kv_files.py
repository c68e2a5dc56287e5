"""KV blocks in files that outlive the engine: written in the background, read when needed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from quire.kv.lower_tiers import PREFIX, BlockFolder, touch

logger = logging.getLogger(__name__)

QUEUE_BYTES = 512 * 2**20
"""Most bytes of copies that wait for the disk. Further blocks are not written."""
KEPT = 0.9
"""What an eviction leaves, as a share of the limit."""
MEASURED_EVERY = 1 / 40
"""Bytes written before an engine measures the directory again, as a share of the limit."""
STALE_SECONDS = 3600.0
"""Age of an unfinished file whose writer must have died."""
_CHECKSUM = 8
_UNFINISHED = "."

Row = NDArray[np.int64]


class BlockFiles:
    """Writes, reads and evicts the files of a `BlockFolder`.

        file   [ digest of the model | checksum of key and block, 8 bytes | block ]

    A file appears under its name when it is complete. Several engines may share the directory:
    equal keys have equal blocks. Together they keep at most `limit` bytes, the least recently used
    files are evicted. More than four engines may exceed it by `MEASURED_EVERY` each.

    Args:
        folder: created if needed.
        read_only: nothing is written, so the folder need not be writable, nor be there yet.

    Raises:
        OSError: the folder cannot be created or written to.
    """

    def __init__(
        self, folder: BlockFolder, block_bytes: int, limit: int, *, read_only: bool = False
    ) -> None:
        self.folder = folder
        self._limit = limit
        self.head_bytes = len(folder.digest) + _CHECKSUM
        self._file_bytes = self.head_bytes + block_bytes
        self._suffix = f".{os.getpid()}.{id(self)}"
        if not read_only:
            folder.folder.mkdir(parents=True, exist_ok=True)
            _check_writable(folder.folder / (_UNFINISHED + "probe" + self._suffix))
        self._lock = threading.Condition()
        self._waiting: dict[bytes, tuple[Row, int]] = {}
        self._queue: deque[bytes] = deque()
        self._closed = False
        self._unseen = limit
        """Bytes written since the directory was measured; at first all of it is unknown."""
        self.num_failed = 0
        """Blocks that could not be written."""
        self.num_skipped = 0
        """Blocks that were not written, because too many waited."""
        self._writer = threading.Thread(target=self._write_all, name="kv-files", daemon=True)
        self._writer.start()

    @property
    def room(self) -> int:
        """Return how many blocks `write` takes now."""
        return max(0, QUEUE_BYTES // self._file_bytes + 1 - len(self._waiting))

    def write(self, key: bytes, row: Row, checksum: int) -> None:
        """Write a block in the background. `row` must not change; `read` finds it immediately."""
        with self._lock:
            self._waiting[key] = row, checksum
            self._queue.append(key)
            self._lock.notify_all()

    def read(self, key: bytes, row: Row) -> int:
        """Read a block into `row`, and mark it as used.

        Returns:
            The checksum that was stored with it; the caller must check it.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: it is damaged, or another model's.
        """
        if waiting := self._waiting.get(key):
            row[:] = waiting[0]
            return waiting[1]
        head, path = bytearray(self.head_bytes), self.folder.path(key)
        fd = open_block(path)
        try:
            size = os.preadv(fd, [head, row.data.cast("B")], 0)
            longer = os.fstat(fd).st_size != size
        finally:
            os.close(fd)
        if longer or size != self._file_bytes or not head.startswith(self.folder.digest):
            raise ValueError(f"{path} is not a block of this model, or was cut")
        touch(path)
        return int.from_bytes(head[-_CHECKSUM:], "little")

    def expect(self, keys: Iterable[bytes]) -> None:
        """Do nothing: the system reads ahead within a file."""

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove these blocks' files, and cancel pending writes."""
        for key in keys:
            with self._lock:
                self._waiting.pop(key, None)
                _remove(self.folder.path(key))

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all blocks are written; return False if that takes longer."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._queue, seconds)

    def close(self) -> None:
        """Write what waits, and end the writer."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._writer.join()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                key = self._queue[0]
                waiting = self._waiting.get(key)
            if waiting is not None:  # else it was removed meanwhile
                self._write(key, *waiting)
            with self._lock:
                self._queue.popleft()
                self._lock.notify_all()
            self._bound()

    def _write(self, key: bytes, row: Row, checksum: int) -> None:
        path = self.folder.path(key)
        unfinished = self.folder.folder / (_UNFINISHED + key.hex() + self._suffix)
        try:
            with _create(unfinished) as file:
                file.write(self.folder.digest + checksum.to_bytes(_CHECKSUM, "little"))
                file.write(row.data.cast("B"))
            with self._lock:
                if self._waits(key, row):  # else it was removed while it was written
                    unfinished.replace(path)
        except OSError as error:
            # No request fails: a block without its file is computed again.
            if not self.num_failed:
                logger.warning("KV blocks cannot be written to %s: %s", self.folder.folder, error)
            self.num_failed += 1
        with self._lock:
            if self._waits(key, row):
                del self._waiting[key]
        _remove(unfinished)
        self._unseen += self._file_bytes

    def _waits(self, key: bytes, row: Row) -> bool:
        return key in self._waiting and self._waiting[key][0] is row

    def _bound(self) -> None:
        """Evict files if the directory may have grown beyond the limit."""
        if self._unseen >= MEASURED_EVERY * self._limit:
            self._unseen = 0
            evict(self.folder.directory, self._limit)


def evict(directory: Path, limit: int) -> None:
    """Remove the least recently used blocks of all models, if they take more than `limit` bytes.

    One engine does it at a time; the others go on.
    """
    with contextlib.suppress(OSError), _open_lock(directory / f".{PREFIX}lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = sorted(_blocks(directory))
        total = sum(size for _, size, _ in found)
        if total <= (1 - 4 * MEASURED_EVERY) * limit:
            return
        for _, size, path in found:
            if _remove(path):  # else it is another user's
                total -= size
            if total <= (KEPT - 4 * MEASURED_EVERY) * limit:
                return


def open_block(path: str) -> int:
    """Return a descriptor to read a block's file from.

    Raises:
        OSError: there is none, or it is no plain file: a pipe would never end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no plain file", path)
    return fd


def _create(path: Path) -> BinaryIO:
    """Open a new file to write to, in a folder that somebody may have removed meanwhile.

    It follows no link: another user of the folder might have left one.
    """
    try:
        return path.open("xb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")


def _open_lock(path: Path) -> BinaryIO:
    """Open the lock file, which may be another user's, or make it."""
    how = os.O_CREAT | os.O_NOFOLLOW
    try:
        return open(os.open(path, how | os.O_RDWR, 0o666), "rb")  # NFS locks writable ones only
    except PermissionError:
        return open(os.open(path, how | os.O_RDONLY), "rb")


def _blocks(directory: Path) -> Iterator[tuple[int, int, str]]:
    """Yield time of use, size and path of all blocks; remove old unfinished ones."""
    for folder in directory.glob(PREFIX + "*"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                unfinished = entry.name.startswith(_UNFINISHED)
                if not _is_key(entry.name.removeprefix(_UNFINISHED).partition(".")[0]):
                    continue  # not ours
                with contextlib.suppress(OSError):  # another engine removed it
                    found = entry.stat(follow_symlinks=False)
                    if not unfinished:
                        yield found.st_atime_ns, found.st_size, entry.path
                    elif time.time() - found.st_mtime > STALE_SECONDS:
                        _remove(entry.path)


def _check_writable(path: Path) -> None:
    path.touch()
    path.unlink()


def _is_key(name: str) -> bool:
    try:
        return bool(bytes.fromhex(name))
    except ValueError:
        return False


def _remove(path: str | Path) -> bool:
    """Remove a file; return whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True
