"""Frames over a process's standard input and output: a length of four bytes, and so many more."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from quire.core.errors import InvalidRequestError

LENGTH_BYTES = 4
LONGEST = 2 ** (8 * LENGTH_BYTES) - 1


def frame(message: object) -> bytes:
    """`message`, in msgpack, as it goes through the pipe."""
    return _framed(msgspec.msgpack.encode(message))


def json_frame(message: object) -> bytes:
    """Return `message` as a frame of JSON, which holds integers of any size as msgpack does not.

    Raises:
        InvalidRequestError: it is nested too deeply, or is no JSON.
    """
    try:
        return _framed(msgspec.json.encode(message))
    except RecursionError:
        raise InvalidRequestError("The request is nested too deeply.") from None
    except (UnicodeError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"The request holds what JSON cannot: {error}.") from None


def _framed(data: bytes) -> bytes:
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
