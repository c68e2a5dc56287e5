"""Count how much of arriving prompts was seen before, cached or not."""

from __future__ import annotations

from typing import NamedTuple

CHUNK = 64
"""Tokens compared at a time. A prompt of a thousand tokens takes 30 µs."""
MOST_CHUNKS = 65_536
"""Most stored chunks; the oldest are dropped first. Four million tokens in about 20 MB."""


class Repeats(NamedTuple):
    """Tokens of one prompt that were seen before, in whole chunks.

    Attributes:
        leading: leading tokens that an earlier prompt with the same salt had, too.
        salted: further leading tokens that an earlier prompt with another salt had.
        shifted: tokens of chunks that earlier prompts had, but behind another beginning.
    """

    leading: int = 0
    salted: int = 0
    shifted: int = 0


class RepeatedPrefixes:
    """Remembers prompts by hashes of chunks and of chains of them, for statistics only."""

    def __init__(self) -> None:
        self._chains: dict[int, None] = {}
        self._unsalted: dict[int, None] = {}
        self._chunks: dict[int, None] = {}

    def note(
        self, token_ids: list[int], salt: str | None = None, apart: tuple[object, ...] = ()
    ) -> Repeats:
        """Store a prompt; return how much of it earlier prompts had.

        As in the prefix cache, only prompts with equal salts share. The last token never counts,
        because it is always computed.

        Args:
            apart: what else makes blocks differ, such as an adapter; only equal ones are compared.
        """
        chains, without, chunks = self._chains, self._unsalted, self._chunks
        own, plain = hash(salt), hash(None)
        leading = unsalted = shifted = 0
        for start in range(0, len(token_ids) - CHUNK, CHUNK):
            chunk = hash((apart, *token_ids[start : start + CHUNK]))
            own, plain = hash((own, chunk)), hash((plain, chunk))
            if own in chains:
                leading = start + CHUNK
            if plain in without:
                unsalted = start + CHUNK
            elif chunk in chunks:
                shifted += CHUNK
            chains[own] = without[plain] = chunks[chunk] = None
        for seen in (chains, without, chunks):
            while len(seen) > MOST_CHUNKS:
                del seen[next(iter(seen))]
        return Repeats(leading, max(0, unsalted - leading), shifted)
