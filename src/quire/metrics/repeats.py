"""Count how much of arriving prompts was seen before, cached or not."""

from __future__ import annotations

CHUNK = 64
"""Tokens compared at a time. A prompt of a thousand tokens takes 20 µs."""
MOST_CHUNKS = 65_536
"""Most stored chunks; the oldest are dropped first. Four million tokens in about 8 MB."""


class RepeatedPrefixes:
    """Remembers prefixes of prompts by chained hashes, for statistics only."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def note(self, token_ids: list[int], salt: str | None = None) -> int:
        """Store a prompt; return how many leading tokens an earlier prompt had, in whole chunks.

        As in the prefix cache, only prompts with equal salts share. The last token never counts,
        because it is always computed.
        """
        seen, chain, repeated = self._seen, hash(salt), 0
        for start in range(0, len(token_ids) - CHUNK, CHUNK):
            chain = hash((chain, *token_ids[start : start + CHUNK]))
            if chain in seen:
                repeated = start + CHUNK
            else:
                seen[chain] = None
        while len(seen) > MOST_CHUNKS:
            del seen[next(iter(seen))]
        return repeated
