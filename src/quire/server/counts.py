"""Count the values of a JSON body while it arrives, before it is decoded.

Decoding holds the GIL, so a body with millions of numbers would block all streams meanwhile.
Counting takes a few milliseconds per part, and the event loop runs between two parts.
"""

from __future__ import annotations

import asyncio

from quire.server.errors import ApiError, invalid

UNCOUNTED_BYTES = 64 * 2**10
"""Shorter bodies are not counted."""
MOST = {
    "values": 2**19,
    "strings": 2**17,
    "objects and arrays": 2**15,
    "escape sequences": 2**21,
    "bytes of strings that are not ASCII": 6 * 2**20,
}
"""Limits of one body. At its limit, each takes 10 to 40 ms to decode.

One character outside ASCII makes its whole string slow to decode, four times as slow as ASCII.
"""
MOST_TOGETHER = 1.25
"""Limit of the sum of the shares of these limits, because their times add up."""
_PIECES_AT_ONCE = 4096


class BodyCounter:
    """Counts the values of a body's parts; tracks whether a part starts inside a string."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(MOST, 0)
        self._in_string = False
        self._escape = b""
        self._wide = False  # the string that continues in the next part is not ASCII
        self._open = 0  # its bytes so far, while it is ASCII

    def add(self, part: bytes) -> ApiError | None:
        """Count the next part. Returns a 400 once a limit is exceeded."""
        counts = self._counts
        part = self._escape + part
        self._escape = b""
        if b"\\" in part:
            pairs = part.count(b"\\\\")
            part = part.replace(b"\\\\", b"")
            if part.endswith(b"\\"):  # it escapes the next part's first byte
                part, self._escape = part[:-1], b"\\"
            counts["escape sequences"] += pairs + part.count(b"\\")
            part = part.replace(b'\\"', b"")
        pieces = part.split(b'"')
        outside = b"".join(pieces[int(self._in_string) :: 2])
        strings = pieces[1 - self._in_string :: 2]
        self._in_string ^= len(pieces) % 2 == 0
        counts["bytes of strings that are not ASCII"] += self._wide_bytes(strings, _is_wide(part))
        counts["values"] += outside.count(b",")
        counts["strings"] += len(pieces) // 2
        counts["objects and arrays"] += outside.count(b"{") + outside.count(b"[")
        for what, count in counts.items():
            if count > MOST[what]:
                return invalid(
                    f"The body has more than {MOST[what]} {what}; send several requests.", None
                )
        if sum(n / MOST[what] for what, n in counts.items() if n) > MOST_TOGETHER:
            held = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            return invalid(
                f"The body has too much to be decoded at once: {held}; send several requests.", None
            )
        return None

    def _wide_bytes(self, strings: list[bytes], wide: bool) -> int:
        """Return the new bytes of strings that are not ASCII.

        Args:
            strings: those of the next part; the first and the last may be incomplete.
            wide: whether the part has a character outside ASCII.
        """
        found = 0
        for number, text in enumerate(strings, 1):
            self._open += len(text)
            self._wide = self._wide or (wide and _is_wide(text))
            if self._wide:
                found += self._open
                self._open = 0
            if number < len(strings) or not self._in_string:
                self._open, self._wide = 0, False
        return found


async def field_at_end(body: bytes | bytearray) -> str | None:
    """Return the top-level field in which a body ends, for an error.

    Args:
        body: the beginning of JSON; only its last part exceeds the limits above.
    """
    text = bytes(body).replace(b"\\\\", b"").replace(b'\\"', b"")
    depth, string, field = 0, b"", b""
    for number, piece in enumerate(text.split(b'"')):
        if number % _PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)
        if number % 2:
            string = piece
            continue
        if depth == 1 and piece.lstrip().startswith(b":"):
            field = string
        depth += piece.count(b"{") + piece.count(b"[") - piece.count(b"}") - piece.count(b"]")
    name = field.decode(errors="replace")
    return name if name.isidentifier() else None


def _is_wide(text: bytes) -> bool:
    """Return whether a string's JSON has a character outside ASCII, also as an escape."""
    return not text.isascii() or b"\\u" in text
