"""How much memory a group of ranks shares; without torch, for whoever makes it."""

from quire import _native


def rank_group_bytes(ranks: int) -> int:
    """Bytes of the memory in which so many ranks meet (`ops.rank_group`)."""
    return _native.rank_group_bytes(ranks)
