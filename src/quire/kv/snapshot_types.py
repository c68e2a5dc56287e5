"""The core's answer to the dashboard about its KV cache; `kv.snapshot` makes it."""

from __future__ import annotations

import msgspec

FREE, CACHED, OWNED, SHARED = range(4)
"""Kinds of blocks: unused; unused with a known prefix; used by one request; by several."""
MAX_NODES = 200


class BlockMap(msgspec.Struct):
    """Blocks in order, as runs of equal ones. Too many runs are merged into cells."""

    num_blocks: int
    owners: list[str]
    """The core's ids of the sequences that hold blocks."""
    kind: list[int]
    """Per run: `FREE`, `CACHED`, `OWNED` or `SHARED`."""
    owner: list[int]
    """Per run: an index into `owners` if the kind is `OWNED`; else -1."""
    count: list[int]
    """Per run: its number of blocks."""
    blocks_per_cell: int = 1
    """If above 1, each cell of this many blocks shows what most of them are."""


class PrefixTree(msgspec.Struct):
    """The known prefixes. A node is a run of blocks without a branch inside.

    The columns have one entry per node, the longest first.
    """

    block_size: int
    num_nodes: int
    """All nodes; the columns list at most `MAX_NODES`."""
    id: list[int]
    """The node's first block."""
    parent: list[int]
    """The nearest listed node above it; -1 if there is none."""
    blocks: list[int]
    users: list[int]
    """Requests that hold the node's first block."""


class KVSnapshot(msgspec.Struct):
    """The core's answer to the dashboard."""

    map: BlockMap
    tree: PrefixTree
