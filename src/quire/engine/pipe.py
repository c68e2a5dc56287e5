"""Frames over a process's standard input and output: a length of four bytes, and so many more."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

LENGTH_BYTES = 4


def frame(message: object) -> bytes:
    """`message`, in msgpack, as it goes through the pipe."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def read_frame(source: BinaryIO) -> bytes:
    """The next message; empty at the end."""
    length = source.read(LENGTH_BYTES)
    return source.read(int.from_bytes(length, "little"))
