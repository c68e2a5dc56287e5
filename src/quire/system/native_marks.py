"""Which client's grammar native code is at, noted where it is read when the process is lost of it.

A note is a place in a file that is mapped into memory, which outlives its process, however that
ends; writing it takes less than a microsecond.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

KEY_BYTES = 16
FILE_BYTES = 16384
_LAYOUT = struct.Struct(f"<Q{KEY_BYTES}s")  # calls so far, and what this one is at
_NOTHING = bytes(KEY_BYTES)


class Note(NamedTuple):
    """A call that has not returned: the same one where all three are the same."""

    place: int
    calls: int
    key: bytes


class Mark:
    """One thread's note.

    Args:
        memory: of a file that `make_file` has made, or of nobody's.
        place: whose nobody else is.
    """

    def __init__(self, memory: mmap.mmap | bytearray, place: int) -> None:
        self._memory = memory
        self._start = place * _LAYOUT.size
        self._calls = 0

    def enter(self, key: bytes) -> None:
        """A call begins. `key`: [KEY_BYTES], not all zero."""
        self._calls += 1
        _LAYOUT.pack_into(self._memory, self._start, self._calls, key)

    def leave(self) -> None:
        """It has returned."""
        _LAYOUT.pack_into(self._memory, self._start, self._calls, _NOTHING)


def make_marks(path: str | None, first: int, count: int) -> list[Mark]:
    """Marks at `count` places from `first` on.

    Args:
        path: a file that `make_file` has made; None where nobody would read it.
    """
    if path is None:
        return [Mark(bytearray(_LAYOUT.size), 0) for _ in range(count)]
    with Path(path).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), FILE_BYTES)
    return [Mark(memory, place) for place in range(first, first + count)]


def make_file(path: Path) -> None:
    path.write_bytes(bytes(FILE_BYTES))


def read_notes(path: Path) -> set[Note]:
    """Calls that have not returned; none where there is no such file."""
    try:
        data = path.read_bytes()
    except OSError:
        return set()
    whole = data[: len(data) // _LAYOUT.size * _LAYOUT.size]
    notes = (Note(i, calls, key) for i, (calls, key) in enumerate(_LAYOUT.iter_unpack(whole)))
    return {note for note in notes if note.key != _NOTHING}
