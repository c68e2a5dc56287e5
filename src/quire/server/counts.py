"""How much a JSON body holds, counted while it arrives and before it is decoded.

Decoding holds Python's lock, so that a body of millions of numbers would stop every stream of the
server for its time. Counting costs a few milliseconds per part and lets the event loop turn between
two parts.
"""

from __future__ import annotations

from quire.server.errors import ApiError, invalid

UNCOUNTED_BYTES = 64 * 2**10
"""Shorter bodies cannot hold much."""
MOST = {
    "values": 2**19,
    "strings": 2**17,
    "objects and arrays": 2**15,
    "escape sequences": 2**21,
}
"""The most of one body. Each takes 10 to 40 ms to decode."""


class BodyCounter:
    """Counts a body's parts; knows whether a part begins within a string."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(MOST, 0)
        self._in_string = False
        self._escape = b""

    def add(self, part: bytes) -> ApiError | None:
        """Count the next part. Returns a 400 once the body has too much of something."""
        counts = self._counts
        part = self._escape + part
        if b"\\" in part:
            pairs = part.count(b"\\\\")
            part = part.replace(b"\\\\", b"")
            self._escape = b"\\" if part.endswith(b"\\") else b""  # it escapes what comes next
            counts["escape sequences"] += pairs + part.count(b"\\")
            part = part.replace(b'\\"', b"")
        else:
            self._escape = b""
        pieces = part.split(b'"')
        outside = b"".join(pieces[int(self._in_string) :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        counts["values"] += outside.count(b",")
        counts["strings"] += len(pieces) // 2
        counts["objects and arrays"] += outside.count(b"{") + outside.count(b"[")
        for what, count in counts.items():
            if count > MOST[what]:
                return invalid(
                    f"The body has more than {MOST[what]} {what}; send several requests.", None
                )
        return None
