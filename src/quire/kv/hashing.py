"""Chained block hashes: equal hashes mean equal tokens in the block and in all before it."""

from __future__ import annotations

import hashlib

from quire.core.request import Request


def root_hash(cache_salt: str | None) -> bytes:
    """Where a request's chain begins; requests with another salt share no block."""
    return hashlib.sha256(b"quire:" + (cache_salt or "").encode()).digest()


def extend_block_hashes(request: Request, block_size: int) -> list[bytes]:
    """Hash the full blocks of `request.token_ids` that are not hashed yet.

    Returns:
        `request.block_hashes`, one SHA-256 digest of 32 bytes a full block. A block's hash
        covers its parent's hash and its own tokens, four bytes each.
    """
    hashes = request.block_hashes
    full = len(request.token_ids) // block_size
    if len(hashes) >= full:
        return hashes
    parent = hashes[-1] if hashes else root_hash(request.cache_salt)
    width = block_size * request.token_ids.itemsize
    start = len(hashes) * block_size
    data = request.token_ids[start : full * block_size].tobytes()
    for offset in range(0, len(data), width):
        parent = hashlib.sha256(parent + data[offset : offset + width]).digest()
        hashes.append(parent)
    return hashes
