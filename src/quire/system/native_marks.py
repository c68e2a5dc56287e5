"""Notes of the grammar that native code works on. They can be read after a crash.

A note is a slot in a memory-mapped file, which outlives its process. Writing it takes less than a
microsecond.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

KEY_BYTES = 16
FILE_BYTES = 16384
_LAYOUT = struct.Struct(f"<Q{KEY_BYTES}s")  # number of calls, key of the present one
_NOTHING = bytes(KEY_BYTES)


class Note(NamedTuple):
    """A call that has not returned; equal notes are the same call."""

    place: int
    calls: int
    key: bytes


class Mark:
    """One thread's note.

    Args:
        memory: a mapped file of `make_file`, or plain memory.
        place: a slot that no other mark uses.
    """

    def __init__(self, memory: mmap.mmap | bytearray, place: int) -> None:
        self._memory = memory
        self._start = place * _LAYOUT.size
        self._calls = 0

    def enter(self, key: bytes) -> None:
        """Begin a call. `key`: [KEY_BYTES], not all zero."""
        self._calls += 1
        _LAYOUT.pack_into(self._memory, self._start, self._calls, key)

    def leave(self) -> None:
        _LAYOUT.pack_into(self._memory, self._start, self._calls, _NOTHING)


def make_marks(path: str | None, first: int, count: int) -> list[Mark]:
    """Return marks at `count` places, starting at `first`.

    Args:
        path: a file of `make_file`; None if no process reads the notes.
    """
    if path is None:
        return [Mark(bytearray(_LAYOUT.size), 0) for _ in range(count)]
    with Path(path).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), FILE_BYTES)
    return [Mark(memory, place) for place in range(first, first + count)]


def make_file(path: Path) -> None:
    path.write_bytes(bytes(FILE_BYTES))


def read_notes(path: Path) -> set[Note]:
    """Return the calls that have not returned; empty if the file does not exist."""
    try:
        data = path.read_bytes()
    except OSError:
        return set()
    whole = data[: len(data) // _LAYOUT.size * _LAYOUT.size]
    notes = (Note(i, calls, key) for i, (calls, key) in enumerate(_LAYOUT.iter_unpack(whole)))
    return {note for note in notes if note.key != _NOTHING}
