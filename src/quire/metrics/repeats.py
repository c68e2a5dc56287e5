"""Count how much of arriving prompts was seen before, cached or not."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

CHUNK = 64
"""Leading tokens compared at a time. A prompt of a thousand tokens takes about 0.1 ms."""
LEAST, MOST = 32, 128
"""Tokens of a piece of text that may lie anywhere; see `_cuts`."""
_PLACE = re.compile(rb"[\x05\x17\x25\x3b\x4a\x63\x71\x8e\xab\xb4\xcb\xee]")
_ITEM = 4
MOST_CHUNKS = 65_536
"""Most stored chunks; the oldest are dropped first. Four million tokens in about 20 MB."""


class Repeats(NamedTuple):
    """Tokens of one prompt that were seen before, in whole chunks.

    Attributes:
        leading: leading tokens that an earlier prompt with the same salt had, too.
        salted: further leading tokens that an earlier prompt with another salt had.
        shifted: tokens of pieces that earlier prompts had, but behind another beginning. Its
            length may differ, too.
    """

    leading: int = 0
    salted: int = 0
    shifted: int = 0


class RepeatedPrefixes:
    """Remembers prompts by hashes of pieces, and of chains of chunks, for statistics only."""

    def __init__(self) -> None:
        self._chains: dict[int, None] = {}
        self._unsalted: dict[int, None] = {}
        self._pieces: dict[int, None] = {}

    def note(
        self, token_ids: list[int], salt: str | None = None, apart: tuple[object, ...] = ()
    ) -> Repeats:
        """Store a prompt; return how much of it earlier prompts had.

        As in the prefix cache, only prompts with equal salts share. The last token never counts,
        because it is always computed.

        Args:
            apart: what else makes blocks differ, such as an adapter; only equal ones are compared.
        """
        chains, without, pieces = self._chains, self._unsalted, self._pieces
        own, plain = hash(salt), hash(None)
        leading = unsalted = shifted = 0
        content = array("i", token_ids[:-1]).tobytes()
        for start in range(0, len(token_ids) - CHUNK, CHUNK):
            chunk = hash(content[start * _ITEM : (start + CHUNK) * _ITEM])
            own, plain = hash((own, apart, chunk)), hash((plain, apart, chunk))
            if own in chains:
                leading = start + CHUNK
            if plain in without:
                unsalted = start + CHUNK
            chains[own] = without[plain] = None
        # In the next chunk, at the latest, the prompt differs from those with its beginning.
        same = max(leading, unsalted)
        found: dict[int, None] = {}
        for start, end in pairwise(_cuts(content)):
            piece = hash((apart, content[start * _ITEM : end * _ITEM]))
            if end > same + CHUNK and piece in pieces:
                shifted += end - max(start, same)
            found[piece] = None
        pieces.update(found)  # now: a prompt that repeats itself repeats no other one
        for seen in (chains, without, pieces):
            while len(seen) > MOST_CHUNKS:
                del seen[next(iter(seen))]
        return Repeats(leading, max(0, unsalted - leading), shifted)


def _cuts(content: bytes) -> Iterator[int]:
    """Yield where pieces begin and end: at places that two neighbouring tokens choose.

    So equal text has equal pieces, wherever it begins. One place in 21 is chosen, by the low bytes
    of its two tokens, all at once: a loop over tokens would take longer than all the rest.
    """
    low = content[::_ITEM]
    number = int.from_bytes(low)
    both = (number ^ number >> 8).to_bytes(len(low))
    places = [match.end() for match in _PLACE.finditer(both)]
    last = 0
    yield last
    for place in [*places, len(low)]:
        while place - last > MOST:
            last += MOST
            yield last
        if place - last >= LEAST:
            last = place
            yield last
