"""The bytes of a token.

Every tokenizer family Quire reads decodes a token without looking at its neighbours, but for one
space at the very start of a text. So a vocabulary's decoder, which is a pipeline over strings,
reduces to a function from one token to bytes; joining the bytes and reading them as UTF-8 gives
the text, and a character whose bytes are spread over several tokens needs no special case.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import tokenizers

from quire.core.errors import UnsupportedModelError
from quire.system.records import dataclass


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-ins for bytes: character → byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(hidden)}


BYTE_OF_CHAR = _byte_alphabet()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def byte_of(token: str) -> bytes | None:
    """Return the byte that a token such as "<0x41>" spells; None for other tokens."""
    found = _BYTE_TOKEN.fullmatch(token)
    return found and bytes.fromhex(found[1])


_CLEANUP = tuple(
    (f" {mark}", mark) for mark in (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re")
)
"""Where WordPiece's decoder leaves out its space."""


@dataclass(frozen=True, slots=True)
class TokenDecoder:
    """Converts the tokens of one vocabulary to bytes.

    Attributes:
        byte_level: characters stand for bytes (GPT-2's alphabet).
        byte_fallback: a token "<0x41>" is the byte 0x41.
        replacements: pairs (found, put in its place), in order.
        strips_leading_space: a text that begins with a space was given one by the tokenizer.
        continues: what leads tokens that go on with a word; the others have a space before them
            (WordPiece). Empty if all are words.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strips_leading_space: bool = False
    continues: str | None = None

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes of `token`, as the vocabulary or an added token spells it.

        Added tokens get no special treatment: the `tokenizers` library has none either.
        """
        if self.byte_fallback and (byte := byte_of(token)) is not None:
            return byte
        if self.byte_level:
            try:
                return bytes([BYTE_OF_CHAR[char] for char in token])
            except KeyError:
                return token.encode()  # added after training, spelled as it is
        if self.continues is not None:
            word = token.removeprefix(self.continues)
            token = word if word != token else f" {token}"
        for found, replacement in self.replacements:
            token = token.replace(found, replacement)
        return token.encode()

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> TokenDecoder:
        """Return the decoder that `backend` describes.

        Raises:
            UnsupportedModelError: it has a stage that looks at more than one token.
        """
        if backend.decoder is None:  # the library puts a space between any two tokens
            return cls(continues="", strips_leading_space=True)
        description: dict[str, Any] = json.loads(backend.decoder.__getstate__())
        decoder, fused = cls(), False
        for stage in description.get("decoders", [description]):
            if stage["type"] == "Strip" and stage.get("start") and not fused:
                raise _unsupported(json.dumps(stage))  # it would strip each token
            fused |= stage["type"] == "Fuse"
            decoder = decoder._with_stage(stage)
        return decoder

    def _with_stage(self, stage: dict[str, Any]) -> TokenDecoder:
        """Return this decoder with one more stage."""
        match stage:
            case {"type": "ByteLevel"}:
                return replace(self, byte_level=True)
            case {"type": "ByteFallback"}:
                return replace(self, byte_fallback=True)
            case {"type": "Fuse"}:
                return self
            case {"type": "Replace", "pattern": {"String": found}, "content": replacement}:
                return self._replacing((found, replacement))
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                return replace(self, strips_leading_space=start == 1)
            case {"type": "Metaspace", "replacement": found}:
                strips = stage.get("prepend_scheme", "always") != "never"
                return replace(self._replacing((found, " ")), strips_leading_space=strips)
            case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}:
                decoder = replace(self, continues=prefix, strips_leading_space=True)
                return decoder._replacing(*_CLEANUP) if cleanup else decoder
        raise _unsupported(json.dumps(stage, ensure_ascii=False))

    def _replacing(self, *pairs: tuple[str, str]) -> TokenDecoder:
        return replace(self, replacements=(*self.replacements, *pairs))


def _unsupported(decoder: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The tokenizer's decoder is {decoder}, which cannot be applied token by token.",
        fix="Quire reads byte-level BPE, WordPiece and sentencepiece-like tokenizers; use such a "
        "model.",
    )
