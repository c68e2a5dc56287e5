"""A file mapped into memory, read by offset. No access can leave the file."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quire.core.errors import CheckpointError, ModelNotFoundError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's value; in `mmap` since 3.13
"""Permits to map a file larger than RAM, by reserving no memory for pages that are not written."""


class MappedFile:
    """A whole file as one uint8 array, mapped private and copy-on-write.

    Pages are writable because torch then accepts the arrays without a copy. A written page takes
    memory and changes only in this process. The mapping exists as long as any array that is a view
    of it.

    Raises:
        ModelNotFoundError: the file cannot be opened.
        CheckpointError: the file is empty, a pipe, or cannot be mapped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_fifo():  # to open it waits for a writer
            raise CheckpointError(f"{path.name} is a pipe.", fix="Name a file.")
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                if self.size == 0:
                    raise CheckpointError(
                        f"{path.name} is empty.", fix="Download or copy the file again."
                    )
                self._mapping = mmap.mmap(
                    file.fileno(),
                    self.size,
                    flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        except OSError as error:
            raise ModelNotFoundError(
                f"{path.name} cannot be read: {error.strerror or error}.",
                fix="Check that the file exists and that this user may read it.",
            ) from error
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, dtype=np.uint8)

    def bytes_at(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes [start, stop), which the caller has checked."""
        return self._mapping[start:stop]

    def release(self, start: int, stop: int) -> None:
        """Remove exactly the bytes [start, stop) from this process's resident memory.

        Changes to them are lost.
        """
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)
