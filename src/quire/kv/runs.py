"""Runs of consecutive blocks that a request adds to the prefix cache, with their tokens."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from quire.core.options import RequestInputs
from quire.core.request import Request


class BlockRun(NamedTuple):
    """Blocks [first, first + len(hashes)) of a request.

    Attributes:
        before: the hash of the block before the first one; None if there is none.
        token_ids: their tokens, all blocks one after the other.
    """

    first: int
    hashes: list[bytes]
    before: bytes | None
    token_ids: array[int]
    inputs: RequestInputs


def run_of(request: Request, first: int, end: int, block_size: int) -> BlockRun:
    """Return blocks [first, end) of a request whose blocks are hashed up to `end`."""
    hashes = request.block_hashes
    return BlockRun(
        first,
        hashes[first:end],
        hashes[first - 1] if first else None,
        request.token_ids[first * block_size : end * block_size],
        request.inputs,
    )
