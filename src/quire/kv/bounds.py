"""How many blocks and snapshots a sequence may hold."""

from __future__ import annotations

LEAST_SPACING = 256
"""Least tokens between the snapshots of a prompt."""
SNAPSHOTS_PER_PROMPT = 8
"""Snapshots that a prompt may leave, even if they take more memory than its keys and values."""


def most_blocks(num_tokens: int, block_size: int, window: int | None, max_chunk: int) -> int:
    """Return the most blocks that a sequence of `num_tokens` tokens holds at a time.

    Args:
        window: tokens that it attends to; None means all.
        max_chunk: the most tokens of it in one step.
    """
    blocks = -(-num_tokens // block_size)
    if window is None:
        return blocks
    # A step's tokens and the window before them may begin and end within a block.
    return min(blocks, (window + max_chunk - 2) // block_size + 2)
