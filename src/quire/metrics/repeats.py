"""Count how much of arriving prompts was seen before, cached or not."""

from __future__ import annotations

CHUNK = 64
"""Tokens that are compared at a time: 20 µs for a prompt of a thousand."""
MOST_CHUNKS = 65_536
"""Remembered; the oldest are forgotten first. Four million tokens, in some 8 MB."""


class RepeatedPrefixes:
    """Remembers prefixes of prompts by chained hashes, for statistics only."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def note(self, token_ids: list[int], salt: str | None = None) -> int:
        """Remember a prompt; return how many leading tokens an earlier one had, in whole chunks.

        A salted prompt shares with those of its salt alone, as in the prefix cache. The last token
        is never counted: it is always computed.
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
