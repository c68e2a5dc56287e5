"""Tiers below host memory, which other processes fill and empty, too. No torch, no copies."""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from quire.core.batch import AT_PEER, ON_DISK

PREFIX = "quire-kv-"
"""Begins the names of folders with blocks."""
USED_EVERY = 60.0
"""Seconds after which a block in use is marked again as used."""
TRUSTED = 1.0
"""Seconds for which a block that was found counts as stored."""
MOST_REMEMBERED = 100_000


class LowerTier(Protocol):
    """Blocks by hash. A block may disappear at any time; then its load fails.

    Attributes:
        place: the `BlockLoad.slot` of its loads.
    """

    place: int

    def find(self, key: bytes) -> bool:
        """Return whether the block is stored."""

    def use(self, keys: Iterable[bytes]) -> None:
        """Mark blocks as used, so that they are evicted last."""

    def lose(self, key: bytes) -> None:
        """Forget a block that could not be loaded."""

    def forget_all(self) -> None:
        """Ignore all blocks that are stored now."""

    def promise(self, keys: Iterable[bytes]) -> None:
        """Note what another engine says that it has stored."""

    @property
    def of_states(self) -> LowerTier:
        """Return the tier of states."""


class BlockFolder:
    """The files of one model's blocks: `directory`/quire-kv-`digest`/`key`, both in hexadecimal.

    A file's time of access is the last use of its block, and its time of change the end of its
    write. Files appear complete: they are written under other names.

    Args:
        digest: covers all that a block's bytes depend on, except for its key.
    """

    place = ON_DISK

    def __init__(self, directory: Path, digest: bytes) -> None:
        self.directory = directory
        self.digest = digest
        self.folder = directory / (PREFIX + digest.hex())
        self._start = f"{self.folder}{os.sep}"
        self._seen = _Recent(TRUSTED)
        self._used = _Recent(USED_EVERY)
        self._reset_ns = 0

    @property
    def of_states(self) -> BlockFolder:
        return BlockFolder(self.directory, bytes(byte ^ 0xFF for byte in self.digest))

    def path(self, key: bytes) -> str:
        return self._start + key.hex()

    def find(self, key: bytes) -> bool:
        if self._seen.has(key):
            return True
        try:
            found = os.stat(self.path(key)).st_mtime_ns > self._reset_ns
        except OSError:
            return False
        if found:
            self._seen.note(key)
        return found

    def use(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if not self._used.has(key):
                self._used.note(key)
                touch(self.path(key))

    def lose(self, key: bytes) -> None:
        self._seen.until.pop(key, None)

    def forget_all(self) -> None:
        self._seen.until.clear()
        self._reset_ns = time.time_ns()

    def promise(self, keys: Iterable[bytes]) -> None:
        """Do nothing: files are looked up."""


class PromisedBlocks:
    """Blocks that requests say another engine has. If it has not, their loads fail."""

    place = AT_PEER

    def __init__(self) -> None:
        self._promised: OrderedDict[bytes, None] = OrderedDict()
        self._states: PromisedBlocks | None = None

    @property
    def of_states(self) -> PromisedBlocks:
        self._states = self._states or PromisedBlocks()
        return self._states

    def find(self, key: bytes) -> bool:
        return key in self._promised

    def use(self, keys: Iterable[bytes]) -> None:
        """Do nothing: the other engine sees what is loaded."""

    def lose(self, key: bytes) -> None:
        self._promised.pop(key, None)

    def forget_all(self) -> None:
        self._promised.clear()

    def promise(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._promised[key] = None
            self._promised.move_to_end(key)
        while len(self._promised) > MOST_REMEMBERED:
            self._promised.popitem(last=False)


def touch(path: str) -> None:
    """Set a file's time of access to now, and leave its time of change, if it exists."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


class _Recent:
    """Keys that were noted in the last `seconds`: at most `MOST_REMEMBERED`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.until: dict[bytes, float] = {}

    def has(self, key: bytes) -> bool:
        return time.monotonic() < self.until.get(key, 0.0)

    def note(self, key: bytes) -> None:
        if len(self.until) == MOST_REMEMBERED:
            self.until.clear()
        self.until[key] = time.monotonic() + self._seconds
