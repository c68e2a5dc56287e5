"""Reasoning as opaque text, for clients that send it back instead of storing responses.

OpenAI calls it `encrypted_content`, and Anthropic `signature`. Here it is encoded, not encrypted:
it holds nothing of other clients. So no key is needed, and every server can read it.
"""

from __future__ import annotations

import base64
import binascii

from quire.server.http.json_text import well_formed

_PREFIX = "quire1."


def encode_reasoning(text: str) -> str:
    """Return reasoning as opaque text."""
    return _PREFIX + base64.urlsafe_b64encode(well_formed(text).encode()).decode()


def decode_reasoning(opaque: str) -> str | None:
    """Return the reasoning of an opaque text; None if `encode_reasoning` did not write it."""
    if not opaque.startswith(_PREFIX):
        return None
    try:
        return base64.b64decode(opaque[len(_PREFIX) :], b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
