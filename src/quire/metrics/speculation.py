"""Speculative decoding in the log, in vLLM's words."""

from __future__ import annotations

from quire.core.messages import SpecDecodingStats


def speculation_line(
    now: SpecDecodingStats, before: SpecDecodingStats | None, seconds: float
) -> str | None:
    """Return the log's line about the time between two states; None if nothing was drafted."""
    positions = now.num_accepted_tokens_per_pos
    before = before or SpecDecodingStats(0, 0, 0, [0] * len(positions))
    passes = now.num_drafts - before.num_drafts
    drafted = now.num_draft_tokens - before.num_draft_tokens
    accepted = now.num_accepted_tokens - before.num_accepted_tokens
    if passes <= 0:
        return None
    rates = ", ".join(
        f"{(new - old) / passes:.3f}"
        for new, old in zip(positions, before.num_accepted_tokens_per_pos, strict=True)
    )
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / passes:.2f}, "
        f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    )
