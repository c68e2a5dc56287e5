"""Frames over a process's standard input and output: a length of four bytes, and so many more."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

LENGTH_BYTES = 4
LONGEST = 2 ** (8 * LENGTH_BYTES) - 1


def frame(message: object) -> bytes:
    """`message`, in msgpack, as it goes through the pipe."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def read_frame(source: BinaryIO, longest: int = LONGEST) -> bytes:
    """The next message; empty at the end.

    Raises:
        ValueError: it would have more than `longest` bytes.
    """
    length = int.from_bytes(source.read(LENGTH_BYTES), "little")
    if length > longest:
        raise ValueError(f"a frame of {length} bytes")
    return source.read(length)
