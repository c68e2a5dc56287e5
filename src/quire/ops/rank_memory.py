"""The size of the memory that a group of ranks shares; imports no array library."""

from quire import _native


def rank_group_bytes(ranks: int) -> int:
    """Return the bytes of shared memory that a group of `ranks` needs (`ops.rank_group`)."""
    return _native.rank_group_bytes(ranks)
