"""Frames over a process's stdin and stdout: four bytes of length, then the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import msgspec

from quire.core.errors import InvalidRequestError

LENGTH_BYTES = 4
LONGEST = 2 ** (8 * LENGTH_BYTES) - 1


def frame(message: object) -> bytes:
    """Return `message` as a frame of msgpack."""
    return _framed(msgspec.msgpack.encode(message))


def json_frame(message: object) -> bytes:
    """Return `message` as a frame of JSON, which unlike msgpack holds integers of any size.

    Raises:
        InvalidRequestError: it is nested too deeply, or JSON cannot represent it.
    """
    try:
        return _framed(msgspec.json.encode(message))
    except RecursionError:
        raise InvalidRequestError("The request is nested too deeply.") from None
    except (UnicodeError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"JSON cannot represent the request: {error}.") from None


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def read_frame(source: BinaryIO) -> bytes:
    """Return the next frame's data; empty at the end of the input."""
    return source.read(int.from_bytes(source.read(LENGTH_BYTES), "little"))


def answer_all(source: BinaryIO, sink: BinaryIO, answer: Callable[[bytes], object]) -> int:
    """Write the answer to each frame until the input ends; return the exit status."""
    while data := read_frame(source):
        sink.write(frame(answer(data)))
        sink.flush()
    return 0
