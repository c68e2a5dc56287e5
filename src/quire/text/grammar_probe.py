"""Try a short text for each demanding string of a schema, before the request is accepted.

A `pattern` and a length each cost little. Together they are a product, which may exceed a mask's
fuel only a few characters into the text. The walk finds that before a request is accepted.
"""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

from quire.text.json_types import objects

if TYPE_CHECKING:
    from llguidance import LLMatcher

STEPS = 16
"""Tokens of a walk."""
MAX_STRINGS = 32
"""Strings of one schema that are tried."""
_EXPRESSIONS = ("pattern", "format")
_LENGTHS = ("minLength", "maxLength")
_USUAL = sorted(b"ab1 .-,X")


def demanding_strings(schema: Any) -> list[dict[str, Any]]:
    """Return the strings that combine a regex with a length, each once."""
    found: dict[str, dict[str, Any]] = {}
    for each in objects(schema):
        own = {word: each[word] for word in (*_EXPRESSIONS, *_LENGTHS) if word in each}
        if own.keys() & set(_EXPRESSIONS) and own.keys() & set(_LENGTHS):
            found.setdefault(json.dumps(own, sort_keys=True), {"type": "string", **own})
    return list(found.values())[:MAX_STRINGS]


def walk_error(matcher: LLMatcher) -> str | None:
    """Follow the grammar for some tokens; return why it failed, or None."""
    random = Random(0)
    for _ in range(STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return matcher.get_error()
        usual = [token for token in _USUAL if mask[token >> 3] >> (token & 7) & 1]
        token = random.choice(usual) if usual else _first(mask)
        if token is None or not matcher.consume_token(token):
            return matcher.get_error() if matcher.is_error() else None
        if matcher.is_stopped():
            break
    return None


def _first(mask: bytes) -> int | None:
    """Return the first token that a mask allows."""
    place = next((place for place, bits in enumerate(mask) if bits), None)
    if place is None:
        return None
    return place * 8 + (mask[place] & -mask[place]).bit_length() - 1
