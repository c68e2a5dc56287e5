"""Read the token ids of messages."""

from __future__ import annotations

from array import array


def unpack_tokens(packed: bytes) -> list[int]:
    """Return the token ids of `core.request.pack_tokens`' result."""
    return array("i", packed).tolist()
